//! Convolutions and their gradients.

use super::{Array, Destination};
use crate::{Precision, Result};

pub use phalanx_kernels::{Conv2dShape, ConvTranspose2dShape};

/// Which gradients of a convolution are wanted, and what they are computed from.
#[derive(Debug, Clone, Copy)]
pub struct ConvBackward<'a> {
    /// The output's gradient.
    pub dy: &'a Array,
    /// The input, and where the weight's gradient goes.
    pub weight: Option<(&'a Array, &'a Destination)>,
    /// Where the bias's gradient goes.
    pub bias: Option<&'a Destination>,
    /// The weight, if the input's gradient is wanted.
    pub input: Option<&'a Array>,
    /// What products take.
    pub precision: Precision,
}

/// How a back end convolves. Images are [N, C, H, W] and weights [O, I, KH, KW], or of a transposed convolution
/// [I, O, KH, KW]; what the precision stores products in is the type of the result.
pub trait Convolutions {
    /// The cross-correlation of `x` with `weight`, plus `bias`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv2d(
        &self,
        shape: &Conv2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array>;

    /// Writes the parameters' gradients and gives that of the input: f32 for elements of 16 bits, or what products are stored in.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv2d_backward(&self, shape: &Conv2dShape, wanted: ConvBackward<'_>) -> Result<Option<Array>>;

    /// The transposed convolution of `x` with `weight`, plus `bias`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv_transpose2d(
        &self,
        shape: &ConvTranspose2dShape,
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        precision: Precision,
    ) -> Result<Array>;

    /// Writes the parameters' gradients of a transposed convolution and gives that of its input: f32 for elements of 16 bits, or
    /// what products are stored in.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv_transpose2d_backward(
        &self,
        shape: &ConvTranspose2dShape,
        wanted: ConvBackward<'_>,
    ) -> Result<Option<Array>>;
}
