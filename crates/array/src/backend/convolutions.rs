//! Convolutions and their gradients.

use candle_core::DType;

use super::{Array, Destination};
use crate::{Precision, Result};

pub use phalanx_kernels::{Conv2dShape, ConvTranspose2dShape};

/// The inputs of a convolution whose sizes are an `S`.
#[derive(Debug, Clone, Copy)]
pub struct ConvForward<'a, S> {
    /// The sizes.
    pub shape: &'a S,
    /// The images.
    pub x: &'a Array,
    /// The weight.
    pub weight: &'a Array,
    /// The bias `[O]`.
    pub bias: Option<&'a Array>,
    /// The precision of the products.
    pub precision: Precision,
    /// The type of the result: f32 for parts of a sum in 16 bits.
    pub dtype: DType,
}

/// The inputs of the backward of a convolution, and the requested gradients.
#[derive(Debug, Clone, Copy)]
pub struct ConvBackward<'a, S> {
    /// The sizes.
    pub shape: &'a S,
    /// The output's gradient.
    pub dy: &'a Array,
    /// The input, and the destination of the weight's gradient.
    pub weight: Option<(&'a Array, &'a Destination)>,
    /// The destination of the bias's gradient.
    pub bias: Option<&'a Destination>,
    /// The weight, if the input's gradient is requested.
    pub input: Option<&'a Array>,
    /// The precision of the products.
    pub precision: Precision,
}

/// Convolutions on a back end. Images are [N, C, H, W]. Weights are [O, I, KH, KW], of a transposed convolution
/// [I, O, KH, KW]. The result has the type in which the precision stores products.
pub trait Convolutions {
    /// Computes the cross-correlation of `x` with `weight`, plus `bias`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv2d(&self, of: ConvForward<'_, Conv2dShape>) -> Result<Array>;

    /// Writes the parameters' gradients and returns the input's: f32 for elements of 16 bits, or the type in which products
    /// are stored.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv2d_backward(&self, of: ConvBackward<'_, Conv2dShape>) -> Result<Option<Array>>;

    /// Computes the transposed convolution of `x` with `weight`, plus `bias`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv_transpose2d(&self, of: ConvForward<'_, ConvTranspose2dShape>) -> Result<Array>;

    /// As [`Convolutions::conv2d_backward`], for a transposed convolution.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn conv_transpose2d_backward(&self, of: ConvBackward<'_, ConvTranspose2dShape>) -> Result<Option<Array>>;
}
