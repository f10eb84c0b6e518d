//! Loss scaling, so that small gradients survive in f16 (Micikevicius et al. 2018).

use candle_core::{DType, Device, Tensor};

use super::scale_grads_by;
use crate::backend::{Array, Arriving, LOSS_SCALE_STATE, LossScaleOptions, Place, ScaledStep};
use crate::store::FlatParam;
use crate::{Context, Result, TensorError};

/// The scale that a dynamic one starts from.
const INITIAL: f64 = 65_536.0;

/// Good steps after which a dynamic scale doubles.
const INTERVAL: u64 = 2000;

/// What the loss is multiplied by before it is differentiated, and gradients divided by before they are used.
///
/// f16 has no number between 0 and 6e-8, and gradients are often smaller. A dynamic scale keeps them as large as fits: it
/// halves after a step whose gradients were not finite, which is left out, and doubles after 2000 steps that were; as
/// `torch.amp.GradScaler` does.
///
/// Start backward with [`crate::Tape::backward_scaled`] by [`LossScale::factor`], sum gradients over ranks, and take a step by
/// [`LossScale::step`]. The scale lives where steps are computed ([`LossScale::kept_at`]). On the host a step is known at once: apply
/// it to the gradients ([`Scaled::unscale`]), or drop them. On a device the optimizer is given the step
/// ([`super::Optimizer::scaled_step`]) and the host reads later what it has come to ([`Scaled::begin_reading`],
/// [`LossScale::take_note`]).
#[derive(Debug)]
pub struct LossScale {
    dynamic: bool,
    /// `[4]` of f64: the scale, good steps since it changed, steps in a row that were left out, and all that were.
    numbers: Array,
    /// What the host knows of them.
    known: LossScaleState,
}

/// What a checkpoint has to keep of a [`LossScale`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScaleState {
    /// The scale.
    pub scale: f64,
    /// Steps with finite gradients since the scale changed.
    pub good_steps: u64,
    /// Steps in a row, up to now, that were left out.
    pub left_out: u64,
}

/// A step of a scaled loss, where its gradients lie.
#[derive(Debug, Clone)]
pub struct Scaled {
    step: ScaledStep,
    told: Array,
}

/// What a step of a scaled loss has come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledOutcome {
    /// What its loss was multiplied by.
    pub scale: f64,
    /// Whether it was left out, as a gradient was not finite.
    pub left_out: bool,
    /// The norm of the unscaled gradients.
    pub norm: f64,
    /// Steps in a row, up to this one, that were left out.
    pub in_a_row: u64,
    /// All steps that were begun and left out since the scale was made or loaded.
    pub all_left_out: u64,
}

impl LossScale {
    /// Steps in a row that may be left out. A dynamic scale has then fallen by so many halvings that not the scale is at
    /// fault.
    pub const MOST_LEFT_OUT: u64 = 40;

    /// A scale that starts at 65536 and changes.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn dynamic() -> Result<Self> {
        Self::dynamic_from(INITIAL)
    }

    /// A scale that starts at `scale` and changes.
    ///
    /// # Errors
    /// If `scale` is not a positive number.
    pub fn dynamic_from(scale: f64) -> Result<Self> {
        Ok(Self { dynamic: true, ..Self::fixed(scale)? })
    }

    /// A scale that stays. A power of two changes no digits of a gradient.
    ///
    /// # Errors
    /// If `scale` is not a positive number.
    pub fn fixed(scale: f64) -> Result<Self> {
        let known = LossScaleState { scale: checked(scale)?, good_steps: 0, left_out: 0 };
        Ok(Self { dynamic: false, numbers: known.numbers()?.into(), known })
    }

    /// The scale with its state at a place: where steps of the optimizer are computed.
    ///
    /// # Errors
    /// The back end's.
    pub fn kept_at(self, place: &Place) -> Result<Self> {
        Ok(Self { numbers: place.put(&self.known.numbers()?)?, ..self })
    }

    /// Whether the host decides about steps.
    pub fn is_host(&self) -> bool {
        self.numbers.is_host()
    }

    /// What the next loss is multiplied by: a scalar of f64 where the scale lives.
    ///
    /// # Errors
    /// The back end's.
    pub fn factor(&self) -> Result<Array> {
        self.numbers.view(0, ())
    }

    /// What the next loss is multiplied by, as far as the host knows: [`LossScale::take_note`].
    pub fn scale(&self) -> f64 {
        self.known.scale
    }

    /// Takes a step with gradients of this sum of squares ([`super::grad_sum_of_squares`]) over all ranks, and clips their norm
    /// to `max_norm`. `agree` replaces a flag, 0 or 1 in f64 where the gradients lie, by the largest of all ranks: what one of them
    /// sees counts for all.
    ///
    /// # Errors
    /// Those of `agree`, and the back end's.
    pub fn step<E: From<TensorError>>(
        &mut self,
        squares: &Array,
        max_norm: Option<f64>,
        context: &Context,
        agree: impl FnOnce(&Array) -> Result<(), E>,
    ) -> Result<Scaled, E> {
        let squares = if self.is_host() { squares.to_host()?.into() } else { squares.clone() };
        let backend = squares.backend(context);
        let overflow = backend.not_finite(&squares)?;
        agree(&overflow)?;
        let options = LossScaleOptions { max_norm, interval: self.dynamic.then_some(INTERVAL) };
        let [factor, left_out, told] =
            backend.loss_scale_step(options, [&squares, &overflow], &self.numbers)?;
        let all_left_out = self.numbers.view(LOSS_SCALE_STATE - 1, ())?;
        Ok(Scaled { step: ScaledStep { factor, left_out, all_left_out }, told })
    }

    /// Learns what a step has come to, from what [`Scaled::read`] or [`Scaled::begin_reading`] has brought, in the order of steps.
    ///
    /// # Errors
    /// If it is not what a step has told.
    pub fn take_note(&mut self, told: &Tensor) -> Result<ScaledOutcome> {
        let told = told.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let &[scale, left_out, norm, next, good_steps, in_a_row, all_left_out] = told.as_slice() else {
            let problem = format!("a step tells of itself by 7 numbers, not {}", told.len());
            return Err(TensorError::shape("loss_scale_step", problem));
        };
        // A device tells in f32, which has all powers of two that come, but not every number that a scale may start from.
        let ratio = next / scale;
        let scale = if self.known.scale as f32 == scale as f32 { self.known.scale } else { scale };
        let next = scale * ratio;
        let (good_steps, in_a_row) = (good_steps as u64, in_a_row as u64);
        self.known = LossScaleState { scale: next, good_steps, left_out: in_a_row };
        let (left_out, all_left_out) = (left_out != 0.0, all_left_out as u64);
        Ok(ScaledOutcome { scale, left_out, norm, in_a_row, all_left_out })
    }

    /// What a checkpoint keeps: what the host knows.
    pub fn state(&self) -> LossScaleState {
        self.known
    }

    /// Goes on from a checkpoint. A fixed scale keeps its value.
    ///
    /// # Errors
    /// If the scale is not a positive number.
    pub fn load_state(&mut self, state: LossScaleState) -> Result<()> {
        let scale = if self.dynamic { checked(state.scale)? } else { self.known.scale };
        self.known = LossScaleState { scale, ..state };
        self.numbers = self.numbers.alongside(&self.known.numbers()?)?;
        Ok(())
    }

    /// How far it is, for others of the same loss ([`LossScale::follow`]).
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn progress(&self) -> Result<Array> {
        self.numbers.view(0, LOSS_SCALE_STATE - 1)?.duplicate()
    }

    /// Takes over how far another scale of the same loss is ([`LossScale::progress`]). What was left out is each one's own.
    ///
    /// # Errors
    /// If the other one lives elsewhere.
    pub fn follow(&mut self, other: &Array) -> Result<()> {
        self.numbers.view(0, LOSS_SCALE_STATE - 1)?.copy_from(other)
    }
}

impl LossScaleState {
    /// The state of a scale of which no step was left out yet but those in a row.
    fn numbers(&self) -> Result<Tensor> {
        Ok(Tensor::new(&[self.scale, self.good_steps as f64, self.left_out as f64, 0.0], &Device::Cpu)?)
    }
}

impl Scaled {
    /// What the optimizer needs to take the step: [`super::Optimizer::scaled_step`].
    pub fn step(&self) -> &ScaledStep {
        &self.step
    }

    /// Divides gradients by the scale, and clips them: where the host has decided that the step is taken.
    ///
    /// # Errors
    /// The back end's.
    pub fn unscale(&self, params: &[FlatParam], context: &Context) -> Result<()> {
        scale_grads_by(params, &self.step.factor, context)
    }

    /// What the step has come to, for which this waits if it lies on a device.
    ///
    /// # Errors
    /// The back end's.
    pub fn read(&self) -> Result<Tensor> {
        self.told.to_host()
    }

    /// Begins to bring what the step has come to to the host, which does not wait for it.
    ///
    /// # Errors
    /// The back end's.
    pub fn begin_reading(&self) -> Result<Arriving> {
        self.told.begin_numbers()
    }
}

/// A number that can be a scale.
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

    fn step(scale: &mut LossScale, squares: f64) -> ScaledOutcome {
        let squares = Tensor::new(squares, &Device::Cpu).expect("a number").into();
        let context = Context::new(1);
        let alone = |_: &Array| Ok::<_, TensorError>(());
        let step = scale.step(&squares, None, &context, alone).expect("on the host");
        scale.take_note(&step.read().expect("on the host")).expect("seven numbers")
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
