//! Where a loader's batches come from: a dataset joined with its collation, so that what it is a dataset of is no
//! longer seen.

use crate::batch::Batch;
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

    /// How many samples lie together on the disk; see [`Dataset::stretches`].
    fn stretches(&self) -> Option<Vec<usize>> {
        None
    }

    /// How much a sample counts; see [`Dataset::weight`].
    ///
    /// # Errors
    /// If `index` is not below [`len`](BatchSource::len).
    fn weight(&self, index: usize) -> Result<f32>;

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

impl<D: Dataset + ?Sized, C: Collate<D::Item>> BatchSource for Collated<D, C> {
    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn stretches(&self) -> Option<Vec<usize>> {
        self.dataset.stretches()
    }

    fn weight(&self, index: usize) -> Result<f32> {
        self.dataset.weight(index)
    }

    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch> {
        let get = |index| if wanted() { self.dataset.get(index, epoch) } else { Err(DataError::Cancelled) };
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
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn stretches(&self) -> Option<Vec<usize>> {
        subset::stretches(self.inner.stretches()?, &self.indices)
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
