//! Optimizer steps over flat arrays, and the reductions and scalings of gradients before them.

use super::Array;
use crate::Result;

pub use phalanx_kernels::{
    AdamOptions, EmaOptions, LOSS_SCALE_STATE, LionOptions, LossScaleOptions, SgdOptions,
};

/// The decision about a step with a scaled loss. It stays on the device of the gradients, so the host need not wait.
#[derive(Debug, Clone)]
pub struct ScaledStep {
    /// The factor of the gradients: a scalar of f64.
    pub factor: Array,
    /// 1 if the step is skipped because a gradient is not finite, else 0: a scalar of u32.
    pub left_out: Array,
    /// Number of skipped steps so far, including this one: a scalar of f64. Averages and Adam's bias correction do not count
    /// them.
    pub all_left_out: Array,
}

/// The arrays of an optimizer step.
#[derive(Debug, Clone, Copy)]
pub struct ParamUpdate<'a> {
    /// The weights, updated in place.
    pub weights: &'a Array,
    /// The gradients.
    pub grads: &'a Array,
    /// The decision about a step with a scaled loss; `None` uses the gradients unscaled.
    pub scaled: Option<&'a ScaledStep>,
}

/// The arrays of an update of an exponential moving average.
#[derive(Debug, Clone, Copy)]
pub struct AverageUpdate<'a> {
    /// The average, updated in place.
    pub average: &'a Array,
    /// The weights.
    pub weights: &'a Array,
    /// The decision about the preceding step, if its loss was scaled.
    pub scaled: Option<&'a ScaledStep>,
}

/// The inputs of a decision about a step with a scaled loss.
#[derive(Debug, Clone, Copy)]
pub struct LossScaleStep<'a> {
    /// Clipping and growth of the scale.
    pub options: LossScaleOptions,
    /// The sum of squares of the scaled gradients: a scalar of f64.
    pub squares: &'a Array,
    /// Not zero if any rank has a gradient that is not finite ([`Updates::not_finite`]): a scalar of f64.
    pub not_finite: &'a Array,
    /// The state of the scale, `[4]` of f64, updated in place.
    pub state: &'a Array,
}

/// A decision about a step with a scaled loss.
#[derive(Debug)]
pub struct LossScaleOutcome {
    /// [`ScaledStep::factor`].
    pub factor: Array,
    /// [`ScaledStep::left_out`].
    pub left_out: Array,
    /// `[7]` of f64 for the host: the scale of this step, 1 if it is skipped, the norm of the unscaled gradients, and the new
    /// state.
    pub report: Array,
}

/// Optimizer steps on a back end. Arrays are flat, of f32 or f64, and written in place.
pub trait Updates {
    /// Takes a step of gradient descent; `buffer` is the momentum's, if there is momentum.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn sgd_step(&self, options: SgdOptions, of: ParamUpdate<'_>, buffer: Option<&Array>) -> Result<()>;

    /// Takes a step of Adam; `moments` are the averages of gradients and of their squares. With a scaled loss, `options`
    /// counts skipped steps too.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn adam_step(&self, options: AdamOptions, of: ParamUpdate<'_>, moments: [&Array; 2]) -> Result<()>;

    /// Takes a step of Lion; `moment` is the momentum.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn lion_step(&self, options: LionOptions, of: ParamUpdate<'_>, moment: &Array) -> Result<()>;

    /// Computes average ← keep·average + (1 − keep)·weights, with [`EmaOptions::keep`]. With a scaled loss: changes nothing
    /// after a skipped step, copies the weights in the first update that counts, and `options` counts skipped updates too.
    ///
    /// # Errors
    /// If the lengths or element types differ.
    fn ema_step(&self, options: EmaOptions, of: AverageUpdate<'_>) -> Result<()>;

    /// Returns the sum of squares of all elements, added in f64 in a fixed order: a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn sum_of_squares(&self, x: &Array) -> Result<Array>;

    /// Returns the exact sum of squares of elements of f32 as digits, `[22]` of f64. The digits of parts, added element by
    /// element, are those of the whole ([`phalanx_kernels::ExactSquares::digits`]).
    ///
    /// # Errors
    /// If the element type is not f32.
    fn exact_squares(&self, x: &Array) -> Result<Array>;

    /// Converts the digits of [`Updates::exact_squares`] to their value, rounded down: a scalar of f64.
    ///
    /// # Errors
    /// If the number or type of the digits is wrong.
    fn exact_squares_value(&self, digits: &Array) -> Result<Array>;

    /// Computes to ← factor·to, where `factor` is a scalar of f64.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn scale_by(&self, to: &Array, factor: &Array) -> Result<()>;

    /// Returns the factor that limits the norm of gradients to `max_norm`, from their sum of squares. It is 1 if the norm is
    /// smaller or not finite.
    ///
    /// # Errors
    /// If the element type is not f64.
    fn clip_factor(&self, sum_of_squares: &Array, max_norm: f64) -> Result<Array>;

    /// Returns 1 if a number is not finite and 0 if it is, scalars of f64. Ranks agree by their maximum.
    ///
    /// # Errors
    /// If the element type is not f64.
    fn not_finite(&self, number: &Array) -> Result<Array>;

    /// Decides about a step with a scaled loss and updates the scale ([`phalanx_kernels::loss_scale_step`]).
    ///
    /// # Errors
    /// If an element type is not f64, or the state does not have four numbers.
    fn loss_scale_step(&self, of: LossScaleStep<'_>) -> Result<LossScaleOutcome>;
}
