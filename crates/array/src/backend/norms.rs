//! Normalisation of each sample by itself: layer norm, group norm, unit length of rows.

use super::Array;
use crate::Result;

/// The inputs of a normalisation with a scale and a shift.
#[derive(Debug, Clone, Copy)]
pub struct NormPass<'a> {
    /// The input.
    pub x: &'a Array,
    /// The weight.
    pub gamma: &'a Array,
    /// The bias.
    pub beta: &'a Array,
    /// Added to the variance.
    pub eps: f64,
}

/// The sizes of a group norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupShape {
    /// Samples, channels, and elements of a channel of one sample.
    pub dims: [usize; 3],
    /// Groups of channels.
    pub groups: usize,
}

/// The output of a normalisation and the statistics for backward.
#[derive(Debug)]
pub struct NormOutput {
    /// The normalised elements, of the input's type.
    pub output: Array,
    /// The means.
    pub mean: Array,
    /// 1/√(variance + eps).
    pub inv_std: Array,
}

/// The inputs of the backward of a normalisation.
#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a> {
    /// The input.
    pub x: &'a Array,
    /// The output's gradient.
    pub dy: &'a Array,
    /// The weight.
    pub gamma: &'a Array,
    /// The means of the forward pass.
    pub mean: &'a Array,
    /// 1/√(variance + eps) of the forward pass.
    pub inv_std: &'a Array,
}

/// The gradients of a normalisation. Those of parameters are f32 for elements of 16 bits.
#[derive(Debug)]
pub struct NormGrads {
    /// The input's. Of a group norm it is f32 for elements of 16 bits; of others it has the input's type.
    pub dx: Array,
    /// The weight's.
    pub dgamma: Array,
    /// The bias's.
    pub dbeta: Array,
}

/// The inputs of the backward of a root mean square norm.
#[derive(Debug, Clone, Copy)]
pub struct RmsNormBackward<'a> {
    /// The input.
    pub x: &'a Array,
    /// The output's gradient.
    pub dy: &'a Array,
    /// The weight.
    pub gamma: &'a Array,
    /// 1/√(mean x² + eps) of the forward pass.
    pub inv_rms: &'a Array,
}

/// The gradients of a root mean square norm.
#[derive(Debug)]
pub struct RmsNormGrads {
    /// The input's, of its type.
    pub dx: Array,
    /// The weight's; f32 for elements of 16 bits.
    pub dgamma: Array,
}

/// Normalisation of samples on a back end. Statistics have the type of the arithmetic: f32 for elements of 16 bits.
pub trait Norms {
    /// Normalises every row (the last dimension).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn layer_norm(&self, of: NormPass<'_>) -> Result<NormOutput>;

    /// Returns the gradients of [`Norms::layer_norm`]. `before` is a gradient that the input has already, of a residual around the
    /// norm: the input's is the sum of both, rounded once.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn layer_norm_backward(&self, from: NormBackward<'_>, before: Option<&Array>) -> Result<NormGrads>;

    /// Normalises every group of channels of every sample.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn group_norm(&self, shape: GroupShape, of: NormPass<'_>) -> Result<NormOutput>;

    /// Returns the gradients of [`Norms::group_norm`].
    ///
    /// # Errors
    /// If the element types are not supported.
    fn group_norm_backward(&self, shape: GroupShape, from: NormBackward<'_>) -> Result<NormGrads>;

    /// Divides every row (the last dimension) by √(mean x² + eps) and multiplies it by `gamma`. Returns the rows, of the input's
    /// type, and 1/√(mean x² + eps).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn rms_norm(&self, x: &Array, gamma: &Array, eps: f64) -> Result<[Array; 2]>;

    /// Returns the gradients of [`Norms::rms_norm`], with `before` as in [`Norms::layer_norm_backward`].
    ///
    /// # Errors
    /// If the element types are not supported.
    fn rms_norm_backward(&self, from: RmsNormBackward<'_>, before: Option<&Array>) -> Result<RmsNormGrads>;

    /// Divides every row (the last dimension) by its length; a row of zeros stays. Returns the rows and the inverse lengths
    /// in f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)>;

    /// Returns the gradient of the input of [`Norms::l2_normalise`] from the output `y`, its gradient, and the inverse lengths.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn l2_normalise_backward(&self, y: &Array, dy: &Array, inverses: &Array) -> Result<Array>;
}
