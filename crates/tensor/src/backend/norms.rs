//! Normalisation of each sample by itself: layers, groups of channels, rows.

use super::Array;
use crate::Result;

/// What a normalisation gives.
#[derive(Debug)]
pub struct Normed {
    /// The normalised elements, stored as the input is.
    pub output: Array,
    /// The means.
    pub mean: Array,
    /// 1/√(variance + eps).
    pub inv_std: Array,
}

/// What the backward of a normalisation starts from.
#[derive(Debug, Clone, Copy)]
pub struct NormBackward<'a> {
    /// The input.
    pub x: &'a Array,
    /// The output's gradient.
    pub dy: &'a Array,
    /// The weight.
    pub gamma: &'a Array,
    /// The means that forward gave.
    pub mean: &'a Array,
    /// 1/√(variance + eps), as forward gave it.
    pub inv_std: &'a Array,
}

/// The gradients of a normalisation; f32 for elements of 16 bits.
#[derive(Debug)]
pub struct NormGrads {
    /// The input's.
    pub dx: Array,
    /// The weight's.
    pub dgamma: Array,
    /// The bias's.
    pub dbeta: Array,
}

/// How a back end normalises samples. Statistics are those of [`NormBackward`], in the type that is computed in.
pub trait Norms {
    /// Layer normalisation of every row (the last dimension).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn layer_norm(&self, x: &Array, gamma: &Array, beta: &Array, eps: f64) -> Result<Normed>;

    /// The gradients of [`Norms::layer_norm`].
    ///
    /// # Errors
    /// If the element types are not supported.
    fn layer_norm_backward(&self, from: NormBackward<'_>) -> Result<NormGrads>;

    /// Group normalisation of `[N, C, elements a channel]` in `dims`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn group_norm(
        &self,
        dims: [usize; 3],
        groups: usize,
        x: &Array,
        gamma: &Array,
        beta: &Array,
        eps: f64,
    ) -> Result<Normed>;

    /// The gradients of [`Norms::group_norm`].
    ///
    /// # Errors
    /// If the element types are not supported.
    fn group_norm_backward(
        &self,
        dims: [usize; 3],
        groups: usize,
        from: NormBackward<'_>,
    ) -> Result<NormGrads>;

    /// Every row (the last dimension) divided by its length, and the inverses of the lengths in f64; a row of zeros stays.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)>;

    /// The gradient of the input of [`Norms::l2_normalise`] from the output `y`, its gradient, and the inverses.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn l2_normalise_backward(&self, y: &Array, dy: &Array, inverses: &Array) -> Result<Array>;
}
