//! Elements moved without being changed.

use candle_core::Shape;

use super::Array;
use crate::Result;

/// What a back end does with the order of elements. Results are contiguous; where nothing moves, they may lie in the memory of
/// the argument.
pub trait Shapes {
    /// The dimensions in the order `dims`, a permutation of them.
    ///
    /// # Errors
    /// If `dims` is not one.
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array>;

    /// Elements `start..start + len` of dimension `dim`.
    ///
    /// # Errors
    /// If they are out of range.
    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array>;

    /// With `before` zeros in front of dimension `dim` and `after` behind it.
    ///
    /// # Errors
    /// If the dimension is out of range.
    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array>;

    /// The arrays one after the other along `dim`. Where one has elements of 16 bits, f32 beside it is rounded to them.
    ///
    /// # Errors
    /// If the other dimensions differ, or there are none.
    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array>;

    /// Repeated to a larger shape, by PyTorch's rules.
    ///
    /// # Errors
    /// If it does not broadcast to that shape.
    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array>;
}
