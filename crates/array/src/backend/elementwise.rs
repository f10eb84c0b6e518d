//! Elementwise functions, and sums.

use candle_core::Shape;

use super::Array;
use crate::Result;

pub use phalanx_kernels::{BinaryOp, UnaryOp};

/// Elementwise functions and sums on a back end.
pub trait Elementwise {
    /// Combines two arrays, broadcast to each other by PyTorch's rules. The result has elements of 16 bits if one of
    /// the arrays has.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or the element types do not match.
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array>;

    /// Returns the gradient of one factor of a product, of shape `shape`: `grad`·`other`, summed over broadcast
    /// dimensions. Elements of 16 bits are widened and not rounded again.
    ///
    /// # Errors
    /// If the shapes do not match.
    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array>;

    /// Computes factor·x + addend.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array>;

    /// Computes −x.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn neg(&self, x: &Array) -> Result<Array>;

    /// Computes f(x).
    ///
    /// # Errors
    /// If the element type is not supported.
    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array>;

    /// Computes f′(x)·dy, where `y` is f(x). If the derivative follows from the output
    /// ([`UnaryOp::derivative_from_output`]), `x` may be `y` too. Elements of 16 bits are widened and not rounded
    /// again.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array>;

    /// Returns the sum of all elements times `factor`, as a scalar; f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array>;

    /// Sums over dimension `dim` and removes it.
    ///
    /// # Errors
    /// If the dimension is out of range.
    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array>;

    /// Sums the gradient of a broadcast array to the shape before broadcasting, in f32 for elements of 16 bits that
    /// are added. The result may share memory with `grad`.
    ///
    /// # Errors
    /// If `shape` does not broadcast to that of `grad`.
    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array>;
}
