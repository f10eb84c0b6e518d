//! Batch normalisation over one batch, or over the batches of all ranks.

use candle_core::DType;

use super::Array;
use crate::Result;

pub use phalanx_kernels::Activation as FusedActivation;

/// The inputs of a batch norm, its scale and shift, and the activation in the same pass.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormPass<'a> {
    /// Samples, channels, and elements of a channel of one sample.
    pub dims: [usize; 3],
    /// The input.
    pub x: &'a Array,
    /// The weight `[C]`.
    pub gamma: &'a Array,
    /// The bias `[C]`.
    pub beta: &'a Array,
    /// Added to the variance.
    pub eps: f64,
    /// The activation of the sum of the normalised input and `residual`.
    pub activation: FusedActivation,
    /// Added before the activation; `None` in backward.
    pub residual: Option<&'a Array>,
}

/// The inputs of the backward of a batch norm.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormBackward<'a> {
    /// The forward pass.
    pub pass: BatchNormPass<'a>,
    /// The statistics of the forward pass.
    pub statistics: &'a Array,
    /// The output, if there was a residual before an activation: the input alone does not tell which elements passed.
    pub output: Option<&'a Array>,
    /// The output's gradient.
    pub dy: &'a Array,
    /// True to compute the residual's gradient. Without an activation it is the output's.
    pub residual: bool,
}

/// The gradients of the input and the residual; f32 for elements of 16 bits.
#[derive(Debug)]
pub struct BatchNormMaps {
    /// The input's.
    pub dx: Array,
    /// The residual's, if it was requested.
    pub residual: Option<Array>,
}

/// Running mean and variance, and the weight of the next batch in them.
#[derive(Debug, Clone, Copy)]
pub struct RunningStatistics<'a> {
    /// The weight of the newest batch.
    pub momentum: f64,
    /// The running mean `[C]`.
    pub mean: &'a Array,
    /// The running unbiased variance `[C]`.
    pub variance: &'a Array,
}

/// Batch normalisation on a back end.
///
/// *Statistics* are one array of f64, `[1 + 2·C]`: the number of elements of a channel, the means, and the sums of squared
/// deviations. *Sums*, which ranks add up, have the same shape: the number of elements, Σx, and Σx². The sums of a *gradient*
/// are `[2·C]`: Σdy and Σdy·x̂ of each channel.
pub trait BatchNorms {
    /// Returns the sums of this batch.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array>;

    /// Computes statistics from sums.
    ///
    /// # Errors
    /// If the array has another shape; and, where the back end can tell without waiting, if a channel has fewer than two
    /// elements.
    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array>;

    /// Converts running mean and variance to the statistics of `count` elements a channel.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, count: f64) -> Result<Array>;

    /// Normalises by the batch's own statistics. Returns act(norm(x) + residual) and the statistics.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_train(&self, pass: BatchNormPass<'_>) -> Result<(Array, Array)>;

    /// Normalises by given statistics.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm(&self, pass: BatchNormPass<'_>, statistics: &Array) -> Result<Array>;

    /// Returns running mean and unbiased variance after a batch: new arrays, or the given ones, updated in place.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_running(&self, statistics: &Array, running: RunningStatistics<'_>) -> Result<[Array; 2]>;

    /// Returns the gradients of [`BatchNorms::batch_norm_train`] and the sums of the output's gradient, in one pass.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_train_backward(&self, of: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)>;

    /// Returns the sums of the output's gradient.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_gradient_sums(&self, of: BatchNormBackward<'_>) -> Result<Array>;

    /// Computes the gradients of input and residual. `sums` are the gradient's, over all elements of the statistics. `None`
    /// means fixed statistics, for which the derivative is only the scale.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_backward(&self, of: BatchNormBackward<'_>, sums: Option<&Array>) -> Result<BatchNormMaps>;

    /// Computes the gradients of weight and bias from a gradient's sums.
    ///
    /// # Errors
    /// If the array has another shape.
    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]>;

    /// Adds one to a 64-bit counter: returns a new array, or the given one, updated in place.
    ///
    /// # Errors
    /// If it is not a 64-bit counter.
    fn count_up(&self, counter: &Array) -> Result<Array>;
}
