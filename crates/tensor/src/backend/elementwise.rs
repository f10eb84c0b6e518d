//! Elementwise functions, and sums.

use candle_core::Shape;

use super::Array;
use crate::Result;

pub use phalanx_kernels::{BinaryOp, UnaryOp};

/// What a back end computes element by element.
pub trait Elementwise {
    /// Combines two arrays, each broadcast to the other's shape by PyTorch's rules. Where one has elements of 16 bits, so has
    /// the result.
    ///
    /// # Errors
    /// If the shapes do not broadcast, or the element types do not go together.
    fn binary(&self, op: BinaryOp, a: &Array, b: &Array) -> Result<Array>;

    /// The gradient of one factor of a product, of shape `shape`: `grad`·`other` added up over what the factor was broadcast
    /// over. Elements of 16 bits are widened and not rounded again.
    ///
    /// # Errors
    /// If the shapes do not go together.
    fn mul_backward(&self, grad: &Array, other: &Array, shape: &Shape) -> Result<Array>;

    /// factor·x + addend.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn affine(&self, x: &Array, factor: f64, addend: f64) -> Result<Array>;

    /// −x.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn neg(&self, x: &Array) -> Result<Array>;

    /// f(x).
    ///
    /// # Errors
    /// If the element type is not supported.
    fn unary(&self, op: UnaryOp, x: &Array) -> Result<Array>;

    /// f′(x)·dy, where `y` is f(x). A function whose derivative follows from its output
    /// ([`UnaryOp::derivative_from_output`]) gets `y` for `x` too. Elements of 16 bits are widened and not rounded again.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn unary_backward(&self, op: UnaryOp, x: &Array, y: &Array, dy: &Array) -> Result<Array>;

    /// value·gelu(gate), where the last dimension holds values and then as many gates: of half that size.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn geglu(&self, x: &Array) -> Result<Array>;

    /// The gradient of the input of [`Elementwise::geglu`]. Elements of 16 bits are widened and not rounded again.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array>;

    /// The sum of all elements times `factor`, as a scalar; f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn sum_all(&self, x: &Array, factor: f64) -> Result<Array>;

    /// The sums over dimension `dim`, which disappears.
    ///
    /// # Errors
    /// If the dimension is out of range.
    fn sum_over(&self, x: &Array, dim: usize) -> Result<Array>;

    /// Reduces the gradient of a broadcast array to the shape before, by sums; in f32 if anything is added to elements of 16
    /// bits. May be in the same memory.
    ///
    /// # Errors
    /// If `grad` is not of a shape that `shape` broadcasts to.
    fn sum_to_shape(&self, grad: &Array, shape: &Shape) -> Result<Array>;
}
