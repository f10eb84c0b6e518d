//! Counter-based random numbers: element i of a stream is a function of its [`Key`] and i alone.

use candle_core::{DType, Shape};

pub use phalanx_kernels::SamplePart;

use super::Array;
use crate::{Key, Result};

/// Dropout in training, by sample of the global batch.
///
/// An element is kept by the index of its sample and its index within the sample. So masks depend neither on how samples
/// are divided among ranks nor on padding behind a sample's elements.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// The key of the random numbers.
    pub key: Key,
    /// The probability that an element becomes 0, below 1.
    pub p: f64,
    /// The index in the global batch of the first sample.
    pub first_sample: usize,
    /// The part of each sample that is there, if it is not all: of its heads in attention, otherwise of its elements.
    pub part: Option<SamplePart>,
}

/// Random numbers on a back end, with the streams of [`Key`].
pub trait Random {
    /// Computes x/(1 − p) where elements are kept, and 0 elsewhere. The first dimension is that of samples.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn dropout(&self, x: &Array, of: Dropout) -> Result<Array>;

    /// Returns elements `start..` of the normal stream.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array>;
}
