//! Collations: from samples to batches.
//!
//! | collation | a sample | arrays and texts of the batch |
//! |---|---|---|
//! | [`ImageCollation`] | an image with its class and caption | `images`, `labels`; `captions` |
//! | [`SequenceCollation`] | a sequence of tokens of any length | `tokens`, `mask`, `lengths`, and `targets` for language models |
//! | [`DetectionCollation`] | an image with boxes and masks of its objects | `images`, `image_sizes`, `boxes`, `labels`, `valid`, `masks` |
//!
//! Other collations are functions, or types that implement [`Collate`]:
//!
//! ```
//! use phalanx_data::{Batch, Result};
//! use phalanx_data::collate::{Collate, Samples};
//!
//! fn points(samples: &mut Samples<'_, [f32; 2]>) -> Result<Batch> {
//!     let number = samples.len();
//!     let mut points = Vec::with_capacity(2 * number);
//!     for sample in samples {
//!         points.extend(sample?.1);
//!     }
//!     Batch::new(number).with("points", [number, 2], points)
//! }
//!
//! # fn main() -> Result<()> {
//! let at = |index: usize| Ok([index as f32, 0.5]);
//! let batch = points.collate(&mut Samples::new("grid", &[4, 7], 0, &at))?;
//! assert_eq!(batch.values::<f32>("points")?, [4.0, 0.5, 7.0, 0.5]);
//! # Ok(())
//! # }
//! ```

mod detections;
mod images;
mod padding;
mod sequences;

pub use detections::{DetectionCollation, DetectionConfig, DetectionImage, ObjectAnnotation};
pub use images::ImageCollation;
pub use padding::PadTo;
pub use sequences::{SequenceCollation, SequenceConfig};

use crate::batch::Batch;
use crate::cached_images::CachedImages;
use crate::error::{DataError, Result};
use std::sync::Arc;

/// A conversion of samples to a batch.
pub trait Collate<T>: Send + Sync {
    /// Makes the batch of `samples`, in their order; there is at least one. A collation that takes the samples one by
    /// one keeps at most one of them in memory in addition to the batch.
    ///
    /// # Errors
    /// If a sample cannot be read or does not fit the others; the error names it.
    fn collate(&self, samples: &mut Samples<'_, T>) -> Result<Batch>;

    /// Returns the collation with images as bytes, for a consumer that finishes the transform itself and has `cached`
    /// some images. `None` if the collation has no such images.
    fn as_bytes(&self, cached: Option<Arc<CachedImages>>) -> Option<Self>
    where
        Self: Sized,
    {
        let _ = cached;
        None
    }

    /// Returns height and width of its images as bytes, if they depend on neither the images nor the epoch.
    fn fixed_images(&self) -> Option<[usize; 2]> {
        None
    }

    /// Returns true if the image of a sample is cached, so that it need not be read.
    fn is_cached(&self, index: usize) -> bool {
        let _ = index;
        false
    }
}

impl<T, F: Fn(&mut Samples<'_, T>) -> Result<Batch> + Send + Sync> Collate<T> for F {
    fn collate(&self, samples: &mut Samples<'_, T>) -> Result<Batch> {
        self(samples)
    }
}

/// An iterator over the samples of a future batch with their indices. Each is read when it is requested.
pub struct Samples<'a, T> {
    dataset: &'a str,
    indices: std::slice::Iter<'a, usize>,
    epoch: u64,
    get: &'a dyn Fn(usize) -> Result<T>,
}

impl<'a, T> Samples<'a, T> {
    /// Makes an iterator over the samples at `indices` of a dataset; `get` reads them.
    #[must_use]
    pub fn new(
        dataset: &'a str,
        indices: &'a [usize],
        epoch: u64,
        get: &'a dyn Fn(usize) -> Result<T>,
    ) -> Self {
        Self { dataset, indices: indices.iter(), epoch, get }
    }

    /// Returns the dataset's name, for messages.
    #[must_use]
    pub fn dataset(&self) -> &'a str {
        self.dataset
    }

    /// Returns the epoch, which seeds random steps together with a sample's index.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Makes an error that names a sample.
    #[must_use]
    pub fn error(&self, index: usize, reason: impl Into<String>) -> DataError {
        DataError::sample(self.dataset, index, reason)
    }
}

impl<T> std::fmt::Debug for Samples<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samples")
            .field("dataset", &self.dataset)
            .field("indices", &self.indices.as_slice())
            .field("epoch", &self.epoch)
            .finish_non_exhaustive()
    }
}

impl<T> Iterator for Samples<'_, T> {
    type Item = Result<(usize, T)>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = *self.indices.next()?;
        Some((self.get)(index).map(|item| (index, item)))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.indices.size_hint()
    }
}

impl<T> ExactSizeIterator for Samples<'_, T> {}
