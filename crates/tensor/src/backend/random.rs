//! Random numbers, drawn by counters: element i of a stream is a function of its [`Key`] and i alone.

use candle_core::{DType, Shape};

use super::Array;
use crate::{Key, Result};

/// How a back end draws. What it draws is the streams of [`Key`], whatever it computes them with.
pub trait Random {
    /// Which of `shape`'s elements dropout keeps: 1 where element `start..` of the uniform stream is at least `p`, else 0, as
    /// u8.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn dropout_mask(&self, key: Key, start: usize, shape: &Shape, p: f64) -> Result<Array>;

    /// x/(1 − p) where the mask has 1, and 0 elsewhere.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn dropout(&self, x: &Array, mask: &Array, p: f64) -> Result<Array>;

    /// Elements `start..` of the normal stream.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array>;
}
