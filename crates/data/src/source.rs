//! Where a loader's batches come from: a dataset joined with its collation, so that what it is a dataset of is no
//! longer seen.

use crate::batch::Batch;
use crate::cached_images::CachedImages;
use crate::collate::{Collate, Samples};
use crate::dataset::{Dataset, check_index};
use crate::error::{DataError, Result};
use crate::subset;
use std::sync::Arc;

/// Batches of samples by their indices, of whatever kind the samples are.
pub trait BatchSource: Send + Sync {
    /// The dataset's name.
    fn name(&self) -> &str;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many samples lie together on the disk; see [`Dataset::chunks`].
    fn chunks(&self) -> Option<Vec<usize>> {
        None
    }

    /// How much a sample counts; see [`Dataset::weight`].
    ///
    /// # Errors
    /// If `index` is not below [`len`](BatchSource::len).
    fn weight(&self, index: usize) -> Result<f32>;

    /// The source with images as bytes that somebody else prepares, who has those that are `held`; `None` if it has no images, or
    /// only prepared ones.
    fn as_bytes(&self, held: Option<Arc<CachedImages>>) -> Option<Arc<dyn BatchSource>> {
        let _ = held;
        None
    }

    /// Height and width of all images as bytes, where they are of one size and the same in every epoch, so that they can be held.
    fn fixed_images(&self) -> Option<[usize; 2]> {
        None
    }

    /// The batch of the samples at `indices`, of which there is at least one; given up as soon as `wanted` says no.
    ///
    /// # Errors
    /// If a sample cannot be read or does not go with the others, and [`DataError::Cancelled`] if it was given up.
    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch>;
}

/// A dataset with the collation that makes batches of its samples.
#[derive(Debug)]
pub struct Collated<D: ?Sized, C> {
    collate: C,
    dataset: Arc<D>,
}

impl<D: Dataset + ?Sized, C: Collate<D::Item>> Collated<D, C> {
    /// Joins the two.
    #[must_use]
    pub fn new(dataset: Arc<D>, collate: C) -> Self {
        Self { collate, dataset }
    }
}

impl<D: Dataset + ?Sized + 'static, C: Collate<D::Item> + 'static> BatchSource for Collated<D, C> {
    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        self.dataset.chunks()
    }

    fn weight(&self, index: usize) -> Result<f32> {
        self.dataset.weight(index)
    }

    fn as_bytes(&self, held: Option<Arc<CachedImages>>) -> Option<Arc<dyn BatchSource>> {
        Some(Arc::new(Self { collate: self.collate.as_bytes(held)?, dataset: Arc::clone(&self.dataset) }))
    }

    fn fixed_images(&self) -> Option<[usize; 2]> {
        self.collate.fixed_images().filter(|_| self.dataset.has_fixed_pixels())
    }

    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch> {
        let get = |index| match wanted() {
            true if self.collate.is_cached(index) => self.dataset.without_pixels(index, epoch),
            true => self.dataset.get(index, epoch),
            false => Err(DataError::Cancelled),
        };
        let batch = self.collate.collate(&mut Samples::new(self.name(), indices, epoch, &get))?;
        if batch.len() != indices.len() {
            let (name, made) = (self.name().to_owned(), batch.len());
            let reason = format!("the collation made {made} samples of {}", indices.len());
            return Err(DataError::Batch { name, reason });
        }
        Ok(batch)
    }
}

/// Some samples of another source, chosen by a seed.
pub struct SourceSubset {
    inner: Arc<dyn BatchSource>,
    indices: Vec<usize>,
}

impl SourceSubset {
    /// `n` samples, those of [`Subset::take`](crate::Subset::take).
    ///
    /// # Errors
    /// If the source has fewer.
    pub fn take(inner: Arc<dyn BatchSource>, n: usize, seed: u64) -> Result<Self> {
        let indices = subset::choose(inner.name(), inner.len(), n, seed)?;
        Ok(Self { inner, indices })
    }
}

impl std::fmt::Debug for SourceSubset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceSubset")
            .field("inner", &self.inner.name())
            .field("len", &self.indices.len())
            .finish_non_exhaustive()
    }
}

impl BatchSource for SourceSubset {
    /// Images of a part are sent with each batch, whatever is held: they have other numbers in the whole.
    fn as_bytes(&self, _: Option<Arc<CachedImages>>) -> Option<Arc<dyn BatchSource>> {
        Some(Arc::new(Self { inner: self.inner.as_bytes(None)?, indices: self.indices.clone() }))
    }

    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        subset::chunks(self.inner.chunks()?, &self.indices)
    }

    fn weight(&self, index: usize) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        self.inner.weight(self.indices[index])
    }

    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch> {
        let of_inner = |&index: &usize| {
            check_index(self.name(), index, self.len())?;
            Ok(self.indices[index])
        };
        let indices: Vec<usize> = indices.iter().map(of_inner).collect::<Result<_>>()?;
        self.inner.batch(&indices, epoch, wanted)
    }
}
