//! The arguments of the norms.

use crate::error::{Result, check_len};

/// The input of a norm and its affine parameters.
#[derive(Debug, Clone, Copy)]
pub struct NormInput<'a, T> {
    /// The values.
    pub x: &'a [T],
    /// The weights, one for each feature or channel.
    pub gamma: &'a [T],
    /// The biases, as many.
    pub beta: &'a [T],
    /// The number added to the variance.
    pub eps: f64,
}

/// The results of a layer or group norm. All elements are overwritten.
#[derive(Debug)]
pub struct NormOutput<'a, T> {
    /// The normalised values; as long as the input.
    pub y: &'a mut [T],
    /// The mean of each row or group.
    pub mean: &'a mut [T],
    /// 1/√(variance + eps) of each row or group.
    pub inv_std: &'a mut [T],
}

/// The inputs of the backward of a layer or group norm.
#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a, T> {
    /// The input of forward.
    pub x: &'a [T],
    /// The gradient of the output.
    pub dy: &'a [T],
    /// The weights.
    pub gamma: &'a [T],
    /// The means that forward saved.
    pub mean: &'a [T],
    /// The 1/√(variance + eps) that forward saved.
    pub inv_std: &'a [T],
}

impl<T> NormBackward<'_, T> {
    /// Checks the lengths for `len` elements, `features` parameters and `rows` statistics.
    pub(super) fn check(&self, kernel: &'static str, len: usize, features: usize, rows: usize) -> Result<()> {
        check_len(kernel, "x", len, self.x.len())?;
        check_len(kernel, "dy", len, self.dy.len())?;
        check_len(kernel, "gamma", features, self.gamma.len())?;
        check_len(kernel, "mean", rows, self.mean.len())?;
        check_len(kernel, "inv_std", rows, self.inv_std.len())
    }
}

/// The gradients of a layer or group norm. All elements are overwritten.
#[derive(Debug)]
pub struct NormGrads<'a, T> {
    /// The gradient of the input.
    pub dx: &'a mut [T],
    /// The gradient of the weights.
    pub dgamma: &'a mut [T],
    /// The gradient of the biases.
    pub dbeta: &'a mut [T],
}

/// The sizes of a group norm over [N, C, P].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupNormShape {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Pixels of a channel.
    pub plane: usize,
    /// Groups of channels; a divisor of the channels.
    pub groups: usize,
}
