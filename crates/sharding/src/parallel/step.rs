//! The protocol of a training step, as types: gradients are added up, then summed over the ranks, then used.

use phalanx_tensor::{Array, ParamBucket};

use super::{ParallelStrategy, SharedUpdate};
use crate::Result;

/// Proof for a [`ParallelStrategy`] that a [`StepGuard`] calls it. Only this module makes one, so the order of calls is kept.
#[derive(Debug)]
pub struct StepToken(());

/// A step under way: run forward and backward with the strategy as listener, once or for several micro-batches.
///
/// ```
/// # use phalanx_sharding::DataParallel;
/// # use phalanx_tensor::{BuildOptions, StoreBuilder, Context, optim::{Optimizer, Sgd}};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let store = StoreBuilder::new(BuildOptions::default()).build()?;
/// # let (parallel, context, mut sgd) = (DataParallel::alone(&store)?, Context::new(1), Sgd::new(0.0, false, 0.0));
/// let mut step = parallel.begin_step()?;
/// for more in [true, true, false] {
///     step.micro_batch(more);
///     // … forward and backward: gradients are added up, and travel with the last micro-batch.
/// }
/// step.finish(|params| sgd.step(params, 0.1, &context))?;
/// # Ok(())
/// # }
/// ```
///
/// Dropping it gives the step up: its gradients are discarded and the parameters stay as they are. All ranks must do so
/// together.
#[derive(Debug)]
#[must_use = "a step that is dropped is given up"]
pub struct StepGuard<'a>(OpenStep<'a>);

/// An open step, which ends when this is dropped.
#[derive(Debug)]
struct OpenStep<'a> {
    parallel: &'a dyn ParallelStrategy,
    token: StepToken,
    completed: bool,
}

impl Drop for OpenStep<'_> {
    fn drop(&mut self) {
        self.parallel.end(&self.token, self.completed);
    }
}

impl<'a> StepGuard<'a> {
    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] if a step is open.
    pub fn begin(parallel: &'a dyn ParallelStrategy) -> Result<Self> {
        let token = StepToken(());
        parallel.begin(&token)?;
        Ok(Self(OpenStep { parallel, token, completed: false }))
    }

    /// Sets whether more micro-batches follow the next one, so that its gradients are not reduced yet. The default is
    /// one micro-batch. All ranks must pass the same value, even ranks without samples.
    pub fn micro_batch(&mut self, more: bool) {
        self.0.parallel.micro_batch(&self.0.token, more);
    }

    /// Waits until the gradients are reduced as the strategy prescribes.
    ///
    /// # Errors
    /// Errors of communication; the step is then given up.
    pub fn reduce(self) -> Result<ReducedStep<'a>> {
        self.0.parallel.reduce(&self.0.token)?;
        Ok(ReducedStep(self.0))
    }

    /// Waits as [`StepGuard::reduce`] does, and changes the parameters as [`ReducedStep::update`] does.
    ///
    /// # Errors
    /// Errors of either.
    pub fn finish(self, change: impl FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()> {
        self.reduce()?.update(change)
    }

    /// Waits as [`StepGuard::reduce`] does, and changes the parameters as [`ReducedStep::update_with`] does.
    ///
    /// # Errors
    /// Errors of either.
    pub fn finish_with(self, rule: &SharedUpdate, learning_rate: f64) -> Result<()> {
        self.reduce()?.update_with(rule, learning_rate)
    }
}

/// A step with reduced gradients: inspect them, agree on them, and update. Dropping it gives the step up, as for
/// gradients that are not finite: all ranks must do so together.
#[derive(Debug)]
#[must_use = "a step that is dropped is given up"]
pub struct ReducedStep<'a>(OpenStep<'a>);

impl ReducedStep<'_> {
    /// Returns the gradients that clipping acts on: those of the owned elements, or, where servers update, those that
    /// this rank pushes.
    pub fn params(&self) -> &[ParamBucket] {
        self.0.parallel.gradients()
    }

    /// Replaces sums over the elements that this rank owns by those over all elements, where they lie: the squares of a norm to
    /// clip by.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn sum(&self, sums: &Array) -> Result<()> {
        self.0.parallel.sum_owned(sums)
    }

    /// Replaces a flag, 0 or 1, by 1 if any rank's is, where it lies: a decision that all must take alike, such as leaving a step
    /// out.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn any(&self, flag: &Array) -> Result<()> {
        self.0.parallel.any(flag)
    }

    /// Has `change` change the parameters, and brings to this rank what others have changed, as [`ParallelStrategy::update`]
    /// says. The step has then ended.
    ///
    /// # Errors
    /// Errors of `change` and of communication.
    pub fn update(
        mut self,
        mut change: impl FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<()> {
        self.0.parallel.update(&mut change)?;
        self.0.completed = true;
        Ok(())
    }

    /// Has `rule` change the parameters at a learning rate, here or by servers, as [`ParallelStrategy::update_with`] says. The step
    /// has then ended.
    ///
    /// # Errors
    /// Errors of the rule and of communication.
    pub fn update_with(mut self, rule: &SharedUpdate, learning_rate: f64) -> Result<()> {
        self.0.parallel.update_with(rule, learning_rate)?;
        self.0.completed = true;
        Ok(())
    }
}
