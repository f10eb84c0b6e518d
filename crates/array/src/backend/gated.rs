//! Gated linear units (Shazeer 2020).

use super::Array;
use crate::Result;

/// Gated linear units on a back end. Gradients of elements of 16 bits are f32.
pub trait GatedUnits {
    /// Computes value·gelu(gate). The last dimension has the values, then as many gates; the result's is half as large.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn geglu(&self, x: &Array) -> Result<Array>;

    /// Returns the gradient of the input of [`GatedUnits::geglu`].
    ///
    /// # Errors
    /// If the element type is not supported.
    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array>;

    /// Computes silu(gate)·value.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array>;

    /// Returns the gradients of the gates and of the values of [`GatedUnits::swiglu`].
    ///
    /// # Errors
    /// If the element type is not supported.
    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]>;
}
