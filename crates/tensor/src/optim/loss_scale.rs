//! Loss scaling, which keeps small gradients representable in f16 (Micikevicius et al. 2018).

use candle_core::{DType, Device, Tensor};

use super::scale_grads_by;
use crate::backend::{
    Array, ComputeDevice, Download, LOSS_SCALE_STATE, LossScaleOptions, LossScaleOutcome, LossScaleStep,
    ScaledStep,
};
use crate::store::ParamBucket;
use crate::{Context, Result, TensorError};

/// The initial value of a dynamic scale.
const INITIAL: f64 = 65_536.0;

/// The number of good steps after which a dynamic scale doubles.
const INTERVAL: u64 = 2000;

/// The factor of the loss in backward, and the divisor of gradients before the update.
///
/// f16 has no number between 0 and 6e-8, and gradients are often smaller. A dynamic scale keeps them as large as
/// possible: it halves after a step with gradients that are not finite, which is skipped, and doubles after 2000 good
/// steps, as `torch.amp.GradScaler` does.
///
/// Start backward with [`crate::Tape::backward_scaled`] by [`LossScale::factor`], sum gradients over ranks, and take
/// a step by [`LossScale::step`]. The scale is on the device of the step ([`LossScale::kept_at`]). On the host the
/// decision is known at once: apply it to the gradients ([`StepDecision::unscale`]), or drop them. On a device, pass it to
/// the optimizer ([`super::Optimizer::scaled_step`]); the host reads the outcome later ([`StepDecision::begin_read`],
/// [`LossScale::apply_report`]).
#[derive(Debug)]
pub struct LossScale {
    dynamic: bool,
    /// `[4]` of f64: the scale, good steps since it changed, consecutive skipped steps, and all skipped steps.
    numbers: Array,
    /// The values known to the host.
    known: LossScaleState,
}

/// The state of a [`LossScale`] in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleState {
    /// The scale.
    pub scale: f64,
    /// Steps with finite gradients since the scale changed.
    pub good_steps: u64,
    /// Consecutive skipped steps up to now.
    pub left_out: u64,
}

/// The decision about a step of a scaled loss, on the gradients' device.
#[derive(Debug, Clone)]
pub struct StepDecision {
    step: ScaledStep,
    report: Array,
}

/// The outcome of a step of a scaled loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepOutcome {
    /// The factor of its loss.
    pub scale: f64,
    /// True if it was skipped because a gradient was not finite.
    pub left_out: bool,
    /// The norm of the unscaled gradients.
    pub norm: f64,
    /// Consecutive skipped steps up to this one.
    pub in_a_row: u64,
    /// All skipped steps since the scale was made or loaded.
    pub all_left_out: u64,
}

impl LossScale {
    /// The largest number of consecutive skipped steps. After 40 halvings of a dynamic scale, the scale is not
    /// the cause.
    pub const MOST_LEFT_OUT: u64 = 40;

    /// Makes a dynamic scale that starts at 65536.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn dynamic() -> Result<Self> {
        Self::dynamic_from(INITIAL)
    }

    /// Makes a dynamic scale that starts at `scale`.
    ///
    /// # Errors
    /// If `scale` is not a positive number.
    pub fn dynamic_from(scale: f64) -> Result<Self> {
        Ok(Self { dynamic: true, ..Self::fixed(scale)? })
    }

    /// Makes a constant scale. A power of two changes no digits of a gradient.
    ///
    /// # Errors
    /// If `scale` is not a positive number.
    pub fn fixed(scale: f64) -> Result<Self> {
        let known = LossScaleState { scale: checked(scale)?, good_steps: 0, left_out: 0 };
        Ok(Self { dynamic: false, numbers: known.numbers()?.into(), known })
    }

    /// Moves the state to the device of optimizer steps.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn kept_at(self, device: &ComputeDevice) -> Result<Self> {
        Ok(Self { numbers: device.put(&self.known.numbers()?)?, ..self })
    }

    /// True if the host decides about steps.
    pub fn is_host(&self) -> bool {
        self.numbers.is_host()
    }

    /// The factor of the next loss: a scalar of f64 on the scale's device.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn factor(&self) -> Result<Array> {
        Ok(self.numbers.view(0, ())?)
    }

    /// The factor of the next loss on the host, one report late: [`LossScale::apply_report`].
    pub fn scale(&self) -> f64 {
        self.known.scale
    }

    /// Decides about a step with gradients of this sum of squares ([`super::grad_sum_of_squares`]) over all ranks,
    /// and clips their norm to `max_norm`. `agree` replaces a flag, 0 or 1 in f64 on the gradients' device, by the
    /// maximum of all ranks.
    ///
    /// # Errors
    /// Errors of `agree` and of the back end.
    pub fn step<E: From<TensorError>>(
        &mut self,
        squares: &Array,
        max_norm: Option<f64>,
        context: &Context,
        agree: impl FnOnce(&Array) -> Result<(), E>,
    ) -> Result<StepDecision, E> {
        let squares = if self.is_host() {
            squares.to_host().map_err(TensorError::from)?.into()
        } else {
            squares.clone()
        };
        let overflow = squares.backend(context).not_finite(&squares).map_err(TensorError::from)?;
        agree(&overflow)?;
        Ok(self.decide(&squares, &overflow, max_norm, context)?)
    }

    /// Decides about a step with gradients of this sum of squares, and a flag whether any element is not finite.
    fn decide(
        &self,
        squares: &Array,
        overflow: &Array,
        max_norm: Option<f64>,
        context: &Context,
    ) -> Result<StepDecision> {
        let backend = squares.backend(context);
        let options = LossScaleOptions { max_norm, interval: self.dynamic.then_some(INTERVAL) };
        let of = LossScaleStep { options, squares, not_finite: overflow, state: &self.numbers };
        let LossScaleOutcome { factor, left_out, report } = backend.loss_scale_step(of)?;
        let all_left_out = self.numbers.view(LOSS_SCALE_STATE - 1, ())?;
        Ok(StepDecision { step: ScaledStep { factor, left_out, all_left_out }, report })
    }

    /// Updates the host's knowledge by the report of a step, from [`StepDecision::read`] or [`StepDecision::begin_read`], in
    /// the order of steps.
    ///
    /// # Errors
    /// If it is not such a report.
    pub fn apply_report(&mut self, report: &Tensor) -> Result<StepOutcome> {
        let report = report.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let &[scale, left_out, norm, next, good_steps, in_a_row, all_left_out] = report.as_slice() else {
            let problem = format!("the report of a step has 7 numbers, not {}", report.len());
            return Err(TensorError::shape("loss_scale_step", problem));
        };
        // A device reports in f32, which represents powers of two, but not every initial scale.
        let ratio = next / scale;
        let scale = if self.known.scale as f32 == scale as f32 { self.known.scale } else { scale };
        let next = scale * ratio;
        let (good_steps, in_a_row) = (good_steps as u64, in_a_row as u64);
        self.known = LossScaleState { scale: next, good_steps, left_out: in_a_row };
        let (left_out, all_left_out) = (left_out != 0.0, all_left_out as u64);
        Ok(StepOutcome { scale, left_out, norm, in_a_row, all_left_out })
    }

    /// The state for a checkpoint, on the host.
    pub fn state(&self) -> LossScaleState {
        self.known
    }

    /// Restores a checkpoint. A constant scale keeps its value.
    ///
    /// # Errors
    /// If the scale is not a positive number.
    pub fn load_state(&mut self, state: LossScaleState) -> Result<()> {
        let scale = if self.dynamic { checked(state.scale)? } else { self.known.scale };
        self.known = LossScaleState { scale, ..state };
        self.numbers = self.numbers.alongside(&self.known.numbers()?)?;
        Ok(())
    }

    /// Returns the scale and its progress, for other scales of the same loss ([`LossScale::follow`]).
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn progress(&self) -> Result<Array> {
        Ok(self.numbers.view(0, LOSS_SCALE_STATE - 1)?.duplicate()?)
    }

    /// Copies the progress of another scale of the same loss ([`LossScale::progress`]). The number of skipped steps
    /// stays.
    ///
    /// # Errors
    /// If the other one is on another device.
    pub fn follow(&mut self, other: &Array) -> Result<()> {
        Ok(self.numbers.view(0, LOSS_SCALE_STATE - 1)?.copy_from(other)?)
    }
}

impl LossScaleState {
    /// Returns the state of a scale without skipped steps other than the consecutive ones.
    fn numbers(&self) -> Result<Tensor> {
        Ok(Tensor::new(&[self.scale, self.good_steps as f64, self.left_out as f64, 0.0], &Device::Cpu)?)
    }
}

impl StepDecision {
    /// The decision, for [`super::Optimizer::scaled_step`].
    pub fn step(&self) -> &ScaledStep {
        &self.step
    }

    /// Divides gradients by the scale and clips them, after the host has decided to take the step.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn unscale(&self, params: &[ParamBucket], context: &Context) -> Result<()> {
        scale_grads_by(params, &self.step.factor, context)
    }

    /// Reads the report of the step; waits for a device.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn read(&self) -> Result<Tensor> {
        Ok(self.report.to_host()?)
    }

    /// Begins to copy the report of the step to the host, without waiting.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn begin_read(&self) -> Result<Download> {
        Ok(self.report.begin_snapshot()?)
    }
}

/// Checks that a number is a valid scale.
fn checked(scale: f64) -> Result<f64> {
    if !(scale.is_finite() && scale > 0.0) {
        let (value, expected) = (scale.to_string(), "expected a finite number above 0");
        return Err(TensorError::Argument { name: "loss scale", value, expected });
    }
    Ok(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(scale: &mut LossScale, squares: f64) -> StepOutcome {
        let squares = Tensor::new(squares, &Device::Cpu).expect("a number").into();
        let context = Context::new(1);
        let alone = |_: &Array| Ok::<_, TensorError>(());
        let step = scale.step(&squares, None, &context, alone).expect("on the host");
        scale.apply_report(&step.read().expect("on the host")).expect("seven numbers")
    }

    #[test]
    fn it_grows_after_good_steps_and_halves_after_a_bad_one() {
        let mut scale = LossScale::dynamic().expect("a constant");
        for _ in 0..INTERVAL - 1 {
            assert!(!step(&mut scale, 1.0).left_out);
        }
        assert_eq!(scale.scale(), INITIAL);
        let mut resumed = LossScale::dynamic().expect("a constant");
        resumed.load_state(scale.state()).expect("sound");
        for scale in [&mut scale, &mut resumed] {
            assert_eq!(step(scale, 4.0 * INITIAL * INITIAL).norm, 2.0);
            assert_eq!(scale.scale(), 2.0 * INITIAL);
            let outcome = step(scale, f64::INFINITY);
            assert!(outcome.left_out && outcome.scale == 2.0 * INITIAL, "{outcome:?}");
            assert_eq!((outcome.in_a_row, outcome.all_left_out), (1, 1));
            assert_eq!((scale.scale(), scale.state().good_steps), (INITIAL, 0));
        }
    }

    #[test]
    fn it_follows_another_of_the_same_loss() {
        let [mut one, mut other] = [1024.0, 8.0].map(|from| LossScale::dynamic_from(from).expect("positive"));
        step(&mut other, f64::NAN);
        step(&mut other, 1.0);
        other.follow(&one.progress().expect("held")).expect("on the host");
        let outcome = step(&mut other, f64::NAN);
        assert_eq!((outcome.scale, outcome.in_a_row, outcome.all_left_out), (1024.0, 1, 2));
        assert_eq!((step(&mut one, 1.0).scale, other.scale()), (1024.0, 512.0));
    }

    #[test]
    fn one_that_stays_has_any_value_above_0() {
        let mut scale = LossScale::fixed(0.1).expect("positive");
        for in_a_row in 1..5 {
            let outcome = step(&mut scale, f64::INFINITY);
            assert_eq!((outcome.scale, outcome.in_a_row, scale.scale()), (0.1, in_a_row, 0.1));
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(LossScale::fixed(bad).is_err(), "{bad}");
        }
    }
}
