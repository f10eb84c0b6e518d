//! Counter-based random numbers: element i of a stream is a function of its [`Key`] and i alone.

use candle_core::{DType, Shape};

use super::Array;
use crate::{Key, Result};

/// Random numbers on a back end, with the streams of [`Key`].
pub trait Random {
    /// Returns the mask of dropout, u8: 1 where element `start..` of the uniform stream is at least `p`, else 0.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn dropout_mask(&self, key: Key, start: usize, shape: &Shape, p: f64) -> Result<Array>;

    /// Computes x/(1 − p) where the mask is 1, and 0 elsewhere.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn dropout(&self, x: &Array, mask: &Array, p: f64) -> Result<Array>;

    /// Returns elements `start..` of the normal stream.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array>;
}
