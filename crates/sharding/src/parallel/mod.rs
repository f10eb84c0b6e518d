//! The interface of every way of training together: gradients go in, updated parameters come out.
//!
//! [`ParallelStrategy`] is the protocol of a step, and [`StepGuard`] that protocol as a type. Four smaller traits hold the rest:
//! [`RankCollectives`] (sums over the ranks in a step), [`Residency`] (parameters in memory), [`Resumable`] (checkpoints and lost
//! ranks) and [`Observed`] (names, bytes, statistics).

mod collectives;
mod histogram;
mod observed;
mod optimizer_update;
mod own_state;
mod residency;
mod resumable;
mod stats;
mod step;

use phalanx_tensor::{Listener, ParamBucket};

pub use collectives::RankCollectives;
pub use histogram::Histogram;
pub use observed::{LocalModel, Observed, ShardRole, StateBytes, StepReports};
pub(crate) use optimizer_update::apply;
pub use optimizer_update::{OptimizerUpdate, PlainUpdate, SharedUpdate};
pub(crate) use own_state::{SavedState, whole};
pub use residency::Residency;
pub use resumable::{OwnState, Resumable};
pub use stats::SyncStats;
pub use step::{ReducedStep, StepGuard, StepToken};

use crate::Result;

/// The protocol of a step of a parallel training.
///
/// Give it to every [`phalanx_tensor::Session`] as listener; the tape tells it when gradients are complete. The strategy decides when
/// ranks wait for each other and what they send. A [`StepGuard`] calls these methods in order. The optimizer runs inside of
/// [`ParallelStrategy::update`], on the elements that this rank owns.
pub trait ParallelStrategy: Listener + RankCollectives + Residency + Resumable + Observed {
    /// Returns the parameters. This rank updates their [`ParamBucket::owned`] elements.
    fn params(&self) -> &[ParamBucket];

    /// Returns the gradients that clipping and loss scaling act on, once they are reduced: those of the owned elements.
    /// With parameter servers, these are the gradients that this rank pushes.
    fn gradients(&self) -> &[ParamBucket] {
        self.params()
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] if a step is under way.
    fn begin(&self, step: &StepToken) -> Result<()>;

    /// Sets whether more micro-batches of the step follow the next one.
    fn micro_batch(&self, step: &StepToken, more: bool);

    /// Waits until the gradients of the owned elements are reduced as the strategy prescribes. Call it when all of this
    /// rank's gradients of the step are complete.
    ///
    /// # Errors
    /// Errors of communication.
    fn reduce(&self, step: &StepToken) -> Result<()>;

    /// Applies `change` to the parameters that this rank owns, then synchronises as the strategy prescribes. A [`StepGuard`] calls it for
    /// gradients; call it directly for other changes, such as an exchange of weights and averages.
    ///
    /// # Errors
    /// Errors of `change` and of communication.
    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()>;

    /// Updates the owned parameters by `rule`, at once or later on the parameter servers. A [`StepGuard`] calls it.
    ///
    /// # Errors
    /// Errors of `rule` and of communication.
    fn update_with(&self, rule: &SharedUpdate, learning_rate: f64) -> Result<()> {
        self.update(&mut |params| apply(rule, params, learning_rate))
    }

    /// Ends a step that was completed, or that was given up with its gradients discarded.
    fn end(&self, step: &StepToken, completed: bool);
}

impl dyn ParallelStrategy + '_ {
    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] if a step is under way.
    pub fn begin_step(&self) -> Result<StepGuard<'_>> {
        StepGuard::begin(self)
    }
}
