//! Steps of optimizers over flat arrays, and what is done with gradients before.

use super::Array;
use crate::Result;

pub use phalanx_kernels::{AdamOptions, EmaOptions, LOSS_SCALE_STATE, LossScaleOptions, SgdOptions};

/// What becomes of a step whose loss was scaled, where its gradients lie: nobody on the host needs to know.
#[derive(Debug, Clone)]
pub struct ScaledStep {
    /// What gradients are multiplied by before they are used: a scalar of f64.
    pub factor: Array,
    /// Whether the step changes nothing, because a gradient is not finite: a scalar of u32, 0 or 1.
    pub left_out: Array,
    /// How many of the steps that were begun have changed nothing, this one included: a scalar of f64. They count for no average
    /// and no correction of Adam.
    pub all_left_out: Array,
}

/// How a back end changes parameters. Arrays are flat, of f32 or f64, and written in place.
pub trait Updates {
    /// One step of gradient descent; `buffer` is the momentum's, if there is momentum. `scaled` says of gradients of a scaled loss
    /// what becomes of them; without it they are used as they are.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn sgd_step(
        &self,
        options: SgdOptions,
        weights: &Array,
        grads: &Array,
        buffer: Option<&Array>,
        scaled: Option<&ScaledStep>,
    ) -> Result<()>;

    /// One step of Adam; `moments` are the averages of gradients and of their squares. Of gradients of a scaled loss `scaled` says
    /// what becomes of them, and `options` counts steps that were left out, too.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn adam_step(
        &self,
        options: AdamOptions,
        weights: &Array,
        grads: &Array,
        moments: [&Array; 2],
        scaled: Option<&ScaledStep>,
    ) -> Result<()>;

    /// average ← keep·average + (1 − keep)·weights, with [`EmaOptions::keep`]. After a step of a scaled loss, `scaled`, nothing if
    /// that was left out, `options` counts updates that were none, too, and the first that is one takes the weights as they are.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn ema_step(
        &self,
        options: EmaOptions,
        average: &Array,
        weights: &Array,
        scaled: Option<&ScaledStep>,
    ) -> Result<()>;

    /// The sum of the squares of all elements, added in f64 and in a fixed order: a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn sum_of_squares(&self, x: &Array) -> Result<Array>;

    /// The sum of the squares of all elements, of f32, without rounding: its digits, `[22]` of f64, which, added up over parts element
    /// by element, are those of the whole ([`phalanx_kernels::ExactSquares::digits`]).
    ///
    /// # Errors
    /// If the element type is not f32.
    fn exact_squares(&self, x: &Array) -> Result<Array>;

    /// The number that the digits of [`Updates::exact_squares`] mean, rounded down: a scalar of f64.
    ///
    /// # Errors
    /// If there are not as many numbers of f64 as there are digits.
    fn exact_squares_value(&self, digits: &Array) -> Result<Array>;

    /// to ← factor·to, where `factor` is a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()>;

    /// What gradients are to be multiplied by so that their norm is at most `max_norm`, from the sum of their squares; 1 if
    /// they need not be, or the norm is not finite.
    ///
    /// # Errors
    /// If the element type is not f64.
    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array>;

    /// 1 if a number is not finite and 0 if it is, where it lies, scalars of f64: what ranks agree on by the largest.
    ///
    /// # Errors
    /// If the element type is not f64.
    fn not_finite(&self, number: &Array) -> Result<Array>;

    /// A step of a scaled loss, from the sum of squares of its gradients and whether any rank's are not finite
    /// ([`Updates::not_finite`]): the factor and the flag of a [`ScaledStep`], and `[7]` of f64 for whoever reads it later: the scale
    /// of this step, 1 if it is left out, the norm of unscaled gradients, and the state after it. `state` is `[4]` of f64 and
    /// changes, as [`phalanx_kernels::loss_scale_step`] says.
    ///
    /// # Errors
    /// If an element type is not f64, or the state is not of four numbers.
    fn loss_scale_step(
        &self,
        options: LossScaleOptions,
        found: [&Array; 2],
        state: &Array,
    ) -> Result<[Array; 3]>;
}
