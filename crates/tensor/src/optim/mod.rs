//! Optimizers over buckets, learning-rate schedules, gradient clipping, and averages of weights.
//!
//! All act on the elements that this rank owns ([`ParamBucket::owned`]). Optimizer state has the layout of the
//! buckets. It is saved and loaded *by parameter name*, so that a checkpoint does not depend on the layout.

mod adam;
mod clip;
mod disk;
mod ema;
mod first_steps;
mod lamb;
mod lion;
mod location;
mod loss_scale;
mod moments;
mod muon;
mod offload;
mod param_norms;
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
pub use lamb::Lamb;
pub use lion::Lion;
pub use location::StateLocation;
pub use loss_scale::{LossScale, LossScaleState, StepDecision, StepOutcome};
pub use muon::Muon;
pub use phalanx_kernels::ExactSquares;
pub use schedule::{Curve, Decay, MomentumRange, OneCycle, Schedule, linear_scaling};
pub use sgd::Sgd;
pub use state::OptimizerState;

use std::collections::BTreeMap;

use candle_core::Tensor;

use crate::backend::{Array, ScaledStep};
use crate::store::ParamBucket;
use crate::{Context, Result};

/// Returns the trainable buckets with owned elements.
fn owned(params: &[ParamBucket]) -> impl Iterator<Item = &ParamBucket> {
    params.iter().filter(|param| param.trainable() && !param.owned().is_empty())
}

/// Returns the buckets with owned elements that are trained now.
fn trained(params: &[ParamBucket]) -> impl Iterator<Item = &ParamBucket> {
    owned(params).filter(|param| !param.is_frozen())
}

/// An optimizer, which updates parameters by their gradients.
pub trait Optimizer: std::fmt::Debug + Send {
    /// Takes a step at learning rate `lr` over the owned elements of all buckets with gradients that are not frozen. Weight
    /// decay applies to groups with [`crate::ParamGroup::decay`], and [`crate::ParamGroup::rate`] is a factor of `lr`.
    ///
    /// # Errors
    /// If gradients are not summed over the ranks yet; and errors of the back end.
    fn step(&mut self, params: &[ParamBucket], lr: f64, context: &Context) -> Result<()> {
        self.scaled_step(params, lr, None, context)
    }

    /// Takes a step as [`Optimizer::step`] does, with gradients of a scaled loss. The decision `scaled` is on their
    /// device and may skip the step. The host counts it in any case, until [`Optimizer::note_left_out`].
    ///
    /// # Errors
    /// Errors of [`Optimizer::step`], and if state and gradients have different locations.
    fn scaled_step(
        &mut self,
        params: &[ParamBucket],
        lr: f64,
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<()>;

    /// Computes the sums over this rank's elements that the next step needs over all elements, such as the norms of
    /// [`Lamb`]; `None` if it needs none. Nothing is changed. Ranks that own parts add the sums up in place, before
    /// [`Optimizer::scaled_step`] with the same arguments.
    ///
    /// # Errors
    /// Errors of [`Optimizer::scaled_step`].
    fn begin_step(
        &mut self,
        params: &[ParamBucket],
        scaled: Option<&ScaledStep>,
        context: &Context,
    ) -> Result<Option<Array>> {
        let _ = (params, scaled, context);
        Ok(None)
    }

    /// Sets the number of skipped steps since the optimizer was made or loaded ([`StepOutcome::all_left_out`]).
    fn note_left_out(&mut self, steps: u64);

    /// Sets the momentum of later steps: that of gradients, or the first of two decay rates.
    fn set_momentum(&mut self, momentum: f64);

    /// Allocates the state of all trainable buckets now, not in the first step. This avoids fragmentation by
    /// short-lived memory.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn reserve(&mut self, params: &[ParamBucket]) -> Result<()>;

    /// Returns the kinds of state that it keeps for each parameter: `exp_avg`, `momentum_buffer`, ….
    fn kinds(&self) -> Vec<&'static str>;

    /// Returns the state by name, `{kind}.{parameter}` with the parameter's shape, and the number of steps without
    /// skipped ones.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn state(&self, params: &[ParamBucket]) -> Result<(u64, Vec<(String, Tensor)>)>;

    /// Loads a state; parameters without an entry keep their initial state. Those with one had their first update in step 1,
    /// unless [`Optimizer::load_first_steps`] tells another.
    ///
    /// # Errors
    /// If a tensor and its parameter have different shapes.
    fn load_state(&mut self, params: &[ParamBucket], steps: u64, tensors: &[(String, Tensor)]) -> Result<()>;

    /// The steps before the first update of parameters that were frozen until then, by name, if steps depend on their number
    /// as those of Adam do. Save it with the state.
    fn first_steps(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Loads the steps before the first update of all parameters with state. Others are updated for the first time later.
    fn load_first_steps(&mut self, before: BTreeMap<String, u64>) {
        let _ = before;
    }

    /// The size of the state in bytes.
    fn state_bytes(&self) -> usize;
}
