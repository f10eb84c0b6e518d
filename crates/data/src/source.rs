//! Sources of batches: a dataset with its collation, independent of the type of samples.

use crate::batch::Batch;
use crate::cached_images::CachedImages;
use crate::collate::{Collate, Samples};
use crate::damage::{DamagedSamples, SampleReader};
use crate::dataset::{Dataset, check_index};
use crate::error::{DataError, Result};
use crate::subset;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Batches by the indices of their samples, for samples of any type.
pub trait BatchSource: Send + Sync {
    /// Returns the name of the dataset.
    fn name(&self) -> &str;

    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns true without samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the lengths of contiguous chunks; see [`Dataset::chunks`].
    fn chunks(&self) -> Option<Vec<usize>> {
        None
    }

    /// Returns the lengths of the samples; see [`Dataset::lengths`].
    fn lengths(&self) -> Option<Vec<u32>> {
        None
    }

    /// Returns the weight of a sample in an epoch; see [`Dataset::weight`].
    ///
    /// # Errors
    /// If `index` is not below [`len`](BatchSource::len).
    fn weight(&self, index: usize, epoch: u64) -> Result<f32>;

    /// Returns the file of a sample; see [`Dataset::sample_path`]. By default it is the dataset's name and the index.
    ///
    /// # Errors
    /// If `index` is not below [`len`](BatchSource::len), or the file cannot be read.
    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(self.name(), index, self.len())?;
        Ok(Path::new(self.name()).join(index.to_string()))
    }

    /// Returns the source with images as bytes, for a consumer that finishes the transform itself and has `cached` some
    /// images. `None` if the source has no such images.
    fn as_bytes(&self, cached: Option<Arc<CachedImages>>) -> Option<Arc<dyn BatchSource>> {
        let _ = cached;
        None
    }

    /// Returns height and width of all images as bytes, if they have one size and are the same in every epoch, so that
    /// they can be cached.
    fn fixed_images(&self) -> Option<[usize; 2]> {
        None
    }

    /// Makes the batch of the samples at `indices`, at least one. It is cancelled as soon as `wanted` returns false.
    ///
    /// # Errors
    /// If a sample cannot be read or does not fit the others, and [`DataError::Cancelled`] if the batch was cancelled.
    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch>;
}

/// A dataset with its collation.
#[derive(Debug)]
pub struct CollatedDataset<D: ?Sized, C> {
    collate: C,
    dataset: Arc<D>,
    /// `None` if a damaged sample is an error.
    damaged: Option<Arc<DamagedSamples>>,
}

impl<D: Dataset + ?Sized, C: Collate<D::Item>> CollatedDataset<D, C> {
    /// Joins a dataset and a collation.
    #[must_use]
    pub fn new(dataset: Arc<D>, collate: C) -> Self {
        Self { collate, dataset, damaged: None }
    }

    /// Has other samples take the place of damaged ones, which are added to `damaged`. See [`damage`](crate::damage).
    #[must_use]
    pub fn with_substitutes(mut self, damaged: Arc<DamagedSamples>) -> Self {
        self.damaged = Some(damaged);
        self
    }

    /// Reads a sample; without its pixels if the consumer has them.
    fn get(&self, index: usize, epoch: u64) -> Result<D::Item> {
        // The cached pixels of a damaged sample are those of the sample in its place.
        let is_cached = self.collate.is_cached(index);
        let read = |index| match is_cached {
            true => self.dataset.without_pixels(index, epoch),
            false => self.dataset.get(index, epoch),
        };
        let Some(damaged) = &self.damaged else { return read(index) };
        let (dataset, len) = (self.dataset.name(), self.dataset.len());
        let path = |index| self.dataset.sample_path(index);
        damaged.read(index, &SampleReader { dataset, len, read: &read, path: &path })
    }
}

impl<D: Dataset + ?Sized + 'static, C: Collate<D::Item> + 'static> BatchSource for CollatedDataset<D, C> {
    fn name(&self) -> &str {
        self.dataset.name()
    }

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn chunks(&self) -> Option<Vec<usize>> {
        self.dataset.chunks()
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        self.dataset.lengths()
    }

    fn weight(&self, index: usize, epoch: u64) -> Result<f32> {
        self.dataset.weight(index, epoch)
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        self.dataset.sample_path(index)
    }

    fn as_bytes(&self, cached: Option<Arc<CachedImages>>) -> Option<Arc<dyn BatchSource>> {
        Some(Arc::new(Self {
            collate: self.collate.as_bytes(cached)?,
            dataset: Arc::clone(&self.dataset),
            damaged: self.damaged.clone(),
        }))
    }

    fn fixed_images(&self) -> Option<[usize; 2]> {
        self.collate.fixed_images().filter(|_| self.dataset.has_fixed_pixels())
    }

    fn batch(&self, indices: &[usize], epoch: u64, wanted: &dyn Fn() -> bool) -> Result<Batch> {
        let get = |index| match wanted() {
            true => self.get(index, epoch),
            false => Err(DataError::Cancelled),
        };
        let batch = self.collate.collate(&mut Samples::new(self.name(), indices, epoch, &get))?;
        if batch.len() != indices.len() {
            let (name, made) = (self.name().to_owned(), batch.len());
            let reason = format!("the collation made {made} samples out of {}", indices.len());
            return Err(DataError::Batch { name, reason });
        }
        Ok(batch)
    }
}

/// A random subset of another source.
pub struct SourceSubset {
    inner: Arc<dyn BatchSource>,
    indices: Vec<usize>,
}

impl SourceSubset {
    /// Selects `n` samples, the same as [`Subset::take`](crate::Subset::take).
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
    /// A subset sends all images with each batch, since their numbers differ in the whole source.
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

    fn lengths(&self) -> Option<Vec<u32>> {
        let whole = self.inner.lengths()?;
        Some(self.indices.iter().map(|index| whole[*index]).collect())
    }

    fn weight(&self, index: usize, epoch: u64) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        self.inner.weight(self.indices[index], epoch)
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(self.name(), index, self.len())?;
        self.inner.sample_path(self.indices[index])
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
