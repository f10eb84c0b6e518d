//! Loss scaling, so that small gradients survive in f16 (Micikevicius et al. 2018).

use super::scale_grads;
use crate::store::FlatParam;
use crate::{Context, Result, TensorError};

/// The scale that a dynamic one starts from.
const INITIAL: f64 = 65_536.0;

/// Good steps after which a dynamic scale doubles.
const INTERVAL: u64 = 2000;

/// What the loss is multiplied by before it is differentiated, and gradients divided by before they are used.
///
/// f16 has no number between 0 and 6e-8, and gradients are often smaller. A dynamic scale keeps them as large as fits: it
/// halves after a step whose gradients were not finite, which must be left out, and doubles after 2000 steps that were; as
/// `torch.amp.GradScaler` does. Start backward with [`crate::Tape::backward_scaled`], sum gradients over ranks, let all ranks
/// agree on whether they are finite (the sum of what [`super::grad_sum_of_squares`] gives tells), and then call
/// [`LossScale::accept`] or [`LossScale::reject`].
#[derive(Debug, Clone, PartialEq)]
pub struct LossScale {
    dynamic: bool,
    state: LossScaleState,
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

impl LossScale {
    /// Steps in a row that may be left out. A dynamic scale has then fallen by so many halvings that not the scale is at
    /// fault.
    pub const MOST_LEFT_OUT: u64 = 40;

    /// A scale that starts at 65536 and changes.
    pub fn dynamic() -> Self {
        Self { dynamic: true, state: LossScaleState { scale: INITIAL, good_steps: 0, left_out: 0 } }
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
        if !(scale.is_finite() && scale > 0.0) {
            let (value, expected) = (scale.to_string(), "expected a finite number above 0");
            return Err(TensorError::Argument { name: "loss scale", value, expected });
        }
        Ok(Self { dynamic: false, state: LossScaleState { scale, good_steps: 0, left_out: 0 } })
    }

    /// What the next loss is multiplied by.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// Takes finite gradients: divides them by the scale, which has grown for the next step if it was time.
    ///
    /// # Errors
    /// If gradients are not on the CPU.
    pub fn accept(&mut self, params: &[FlatParam], context: &Context) -> Result<()> {
        scale_grads(params, 1.0 / self.state.scale, context)?;
        self.state.left_out = 0;
        self.state.good_steps += 1;
        if self.dynamic && self.state.good_steps >= INTERVAL {
            self.state = LossScaleState { scale: self.state.scale * 2.0, good_steps: 0, left_out: 0 };
        }
        Ok(())
    }

    /// Notes a step whose gradients were not finite and which is left out. False if that were too many in a row.
    pub fn reject(&mut self) -> bool {
        self.state.left_out += 1;
        self.state.good_steps = 0;
        if self.dynamic {
            self.state.scale *= 0.5;
        }
        self.state.left_out <= Self::MOST_LEFT_OUT
    }

    /// What a checkpoint keeps.
    pub fn state(&self) -> LossScaleState {
        self.state
    }

    /// Goes on from a checkpoint. A fixed scale keeps its value.
    ///
    /// # Errors
    /// If the scale is not a positive number.
    pub fn load_state(&mut self, state: LossScaleState) -> Result<()> {
        let scale = if self.dynamic { Self::fixed(state.scale)?.scale() } else { self.state.scale };
        self.state = LossScaleState { scale, ..state };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_after_good_steps_and_halves_after_a_bad_one() {
        let context = Context::new(1);
        let mut scale = LossScale::dynamic();
        for _ in 0..INTERVAL - 1 {
            scale.accept(&[], &context).expect("nothing to scale");
        }
        assert_eq!(scale.scale(), INITIAL);
        let mut resumed = LossScale::dynamic();
        resumed.load_state(scale.state()).expect("sound");
        for scale in [&mut scale, &mut resumed] {
            scale.accept(&[], &context).expect("nothing to scale");
            assert_eq!(scale.scale(), 2.0 * INITIAL);
            assert!(scale.reject());
            assert_eq!((scale.scale(), scale.state().good_steps), (INITIAL, 0));
        }
    }

    #[test]
    fn it_gives_up_when_no_scale_helps() {
        for mut scale in [LossScale::dynamic(), LossScale::fixed(8.0).expect("positive")] {
            for _ in 0..LossScale::MOST_LEFT_OUT {
                assert!(scale.reject());
            }
            assert!(!scale.reject());
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(LossScale::fixed(bad).is_err(), "{bad}");
        }
    }
}
