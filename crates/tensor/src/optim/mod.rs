//! Optimizers over flat units, learning-rate schedules, gradient clipping, and averages of weights.
//!
//! An optimizer keeps its state flat, as the unit lies; it is saved and loaded *by parameter name*, so that a
//! checkpoint does not depend on how parameters are cut into units.

mod adam;
mod clip;
mod ema;
mod loss_scale;
mod schedule;
mod sgd;
mod state;

pub use adam::Adam;
pub use clip::{clip_grad_norm, clip_to_norm, grad_sum_of_squares, scale_grads};
pub use ema::Ema;
pub use loss_scale::{LossScale, LossScaleState};
pub use schedule::{Decay, Schedule, linear_scaling};
pub use sgd::Sgd;
pub use state::FlatState;

use candle_core::Tensor;

use crate::store::Unit;
use crate::{Context, Result};

/// Changes parameters by their gradients.
pub trait Optimizer: std::fmt::Debug + Send {
    /// One step at learning rate `lr` over every trainable unit that has gradients. Weight decay applies to
    /// units with [`Unit::decay`].
    ///
    /// # Errors
    /// If a unit's values are not in memory.
    fn step(&mut self, units: &[Unit], lr: f64, context: &Context) -> Result<()>;

    /// Allocates the state of all trainable units now, not in the first step: then it does not lie between memory that
    /// comes and goes.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn reserve(&mut self, units: &[Unit]) -> Result<()>;

    /// The state by name: `{kind}.{parameter}` with the parameter's shape, and the number of steps taken.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn state(&self, units: &[Unit]) -> Result<(u64, Vec<(String, Tensor)>)>;

    /// Takes a state over; what is not named keeps its start.
    ///
    /// # Errors
    /// If a tensor's shape is not its parameter's.
    fn load_state(&mut self, units: &[Unit], steps: u64, tensors: &[(String, Tensor)]) -> Result<()>;

    /// Bytes of state held.
    fn state_bytes(&self) -> usize;
}
