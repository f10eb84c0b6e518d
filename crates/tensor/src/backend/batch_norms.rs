//! Batch normalisation: statistics of channels, over one batch or the batches of all ranks.

use candle_core::DType;

use super::Array;
use crate::Result;

pub use phalanx_kernels::Activation as FusedActivation;

/// What a batch norm multiplies by and adds, and what comes after it in the same pass.
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
    /// Applied to the sum.
    pub activation: FusedActivation,
}

/// What the backward of a batch norm starts from.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormBackward<'a> {
    /// The pass that is differentiated.
    pub pass: BatchNormPass<'a>,
    /// The statistics that it normalised by.
    pub statistics: &'a Array,
    /// The output, if something was added before an activation: what was let through cannot be told from the input then.
    pub output: Option<&'a Array>,
    /// The output's gradient.
    pub dy: &'a Array,
    /// Whether the gradient of what was added is wanted apart: without an activation it is the output's.
    pub residual: bool,
}

/// The gradients of maps; f32 for elements of 16 bits.
#[derive(Debug)]
pub struct BatchNormMaps {
    /// The input's.
    pub dx: Array,
    /// That of what was added, if it was wanted.
    pub residual: Option<Array>,
}

/// How a back end normalises batches.
///
/// *Statistics* are one array of f64, `[1 + 2·C]`: how many elements a channel has, the means, and the sums of squared
/// deviations. *Sums*, which ranks add up, are of the same shape: the number of elements, Σx, and Σx². The sums of a
/// *gradient* are `[2·C]`: Σdy and Σdy·x̂ of each channel.
pub trait BatchNorms {
    /// The sums of this batch.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array>;

    /// The statistics that sums make.
    ///
    /// # Errors
    /// If the array has another shape; and, where the back end can tell without waiting, if a channel has fewer than two
    /// elements.
    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array>;

    /// Running mean and variance as the statistics of `count` elements a channel.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, count: f64) -> Result<Array>;

    /// Normalises by the batch's own statistics, and gives those too: act(norm(x) + residual).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_train(&self, pass: BatchNormPass<'_>, residual: Option<&Array>) -> Result<(Array, Array)>;

    /// Normalises by given statistics.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm(
        &self,
        pass: BatchNormPass<'_>,
        statistics: &Array,
        residual: Option<&Array>,
    ) -> Result<Array>;

    /// Running mean and (unbiased) variance after a batch of weight `momentum`: new arrays, or those that were given, with new
    /// elements.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn batch_norm_running(
        &self,
        statistics: &Array,
        momentum: f64,
        mean: &Array,
        variance: &Array,
    ) -> Result<[Array; 2]>;

    /// The gradients of [`BatchNorms::batch_norm_train`], and the sums of the output's gradient, in one go.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_train_backward(&self, from: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)>;

    /// The sums of the output's gradient.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_gradient_sums(&self, from: BatchNormBackward<'_>) -> Result<Array>;

    /// The gradients of maps from the gradient's sums over all that the statistics are of; without sums, the statistics were
    /// fixed, and the derivative is only the scale.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn batch_norm_backward(&self, from: BatchNormBackward<'_>, sums: Option<&Array>)
    -> Result<BatchNormMaps>;

    /// The gradients of weight and bias that a gradient's sums make.
    ///
    /// # Errors
    /// If the array has another shape.
    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]>;

    /// One more than a 64-bit counter: a new array, or the one that was given, with a new element.
    ///
    /// # Errors
    /// If it is not one.
    fn count_up(&self, counter: &Array) -> Result<Array>;
}
