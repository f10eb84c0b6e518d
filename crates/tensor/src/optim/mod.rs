//! Optimizers over flat parameters, learning-rate schedules, gradient clipping, and averages of weights.
//!
//! All act on the elements that this rank owns ([`FlatParam::owned`]). An optimizer keeps its state flat, as these lie; it is
//! saved and loaded *by parameter name*, so that a checkpoint does not depend on how parameters lie in memory.

mod adam;
mod clip;
mod disk;
mod ema;
mod loss_scale;
mod offload;
mod schedule;
mod sgd;
mod state;

pub use adam::Adam;
use clip::scale_grads_by;
pub use clip::{
    clip_by_squares, clip_grad_norm, clip_to_norm, exact_grad_squares, grad_sum_of_squares, scale_grads,
};
pub use disk::Disk;
pub use ema::Ema;
pub use loss_scale::{LossScale, LossScaleState, Scaled, ScaledOutcome};
pub use offload::StateAt;
pub use phalanx_kernels::ExactSquares;
pub use schedule::{Decay, Schedule, linear_scaling};
pub use sgd::Sgd;
pub use state::FlatState;

use candle_core::Tensor;

use crate::backend::ScaledStep;
use crate::store::FlatParam;
use crate::{Context, Result};

/// What is changed: whatever is trainable, if this rank owns elements of it.
fn owned(params: &[FlatParam]) -> impl Iterator<Item = &FlatParam> {
    params.iter().filter(|param| param.trainable() && !param.owned().is_empty())
}

/// Changes parameters by their gradients.
pub trait Optimizer: std::fmt::Debug + Send {
    /// One step at learning rate `lr` over the owned elements of everything trainable that has gradients. Weight decay applies
    /// to groups with [`crate::ParamGroup::decay`].
    ///
    /// # Errors
    /// If gradients are not summed over the ranks yet; and the back end's.
    fn step(&mut self, params: &[FlatParam], lr: f64, context: &Context) -> Result<()> {
        self.scaled_step(params, lr, None, context)
    }

    /// One step as [`Optimizer::step`] takes it, with gradients of a scaled loss, of which `scaled` says where they lie what becomes
    /// of them; perhaps the step changes nothing. The host counts it all the same, until [`Optimizer::note_left_out`].
    ///
    /// # Errors
    /// Those of [`Optimizer::step`], and if state that is kept elsewhere than the gradients would have to know.
    fn scaled_step(
        &mut self,
        params: &[FlatParam],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()>;

    /// Learns that so many of the steps since it was made or loaded have changed nothing ([`ScaledOutcome::all_left_out`]).
    fn note_left_out(&mut self, steps: u64);

    /// Allocates the state of everything trainable now, not in the first step: then it does not lie between memory that
    /// comes and goes.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn reserve(&mut self, params: &[FlatParam]) -> Result<()>;

    /// The state by name: `{kind}.{parameter}` with the parameter's shape, and the number of steps taken, but for those that were
    /// left out.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn state(&self, params: &[FlatParam]) -> Result<(u64, Vec<(String, Tensor)>)>;

    /// Takes a state over; what is not named keeps its start.
    ///
    /// # Errors
    /// If a tensor's shape is not its parameter's.
    fn load_state(&mut self, params: &[FlatParam], steps: u64, tensors: &[(String, Tensor)]) -> Result<()>;

    /// Bytes of state held.
    fn state_bytes(&self) -> usize;
}
