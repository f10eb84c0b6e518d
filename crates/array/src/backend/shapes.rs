//! Operations that only move elements.

use candle_core::Shape;

use super::Array;
use crate::Result;

/// Operations on a back end that only move elements. Results are contiguous; they may share memory with the argument.
pub trait Shapes {
    /// Permutes the dimensions to the order `dims`.
    ///
    /// # Errors
    /// If `dims` is not a permutation.
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array>;

    /// Returns elements `start..start + len` of dimension `dim`.
    ///
    /// # Errors
    /// If they are out of range.
    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array>;

    /// Pads dimension `dim` with `before` zeros in front and `after` behind.
    ///
    /// # Errors
    /// If the dimension is out of range.
    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array>;

    /// Concatenates the arrays along `dim`. If one has elements of 16 bits, f32 is rounded to them.
    ///
    /// # Errors
    /// If the other dimensions differ, or there are none.
    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array>;

    /// Broadcasts to a larger shape, by PyTorch's rules.
    ///
    /// # Errors
    /// If it does not broadcast to that shape.
    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array>;
}
