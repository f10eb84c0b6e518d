//! Local SGD and DiLoCo: every rank trains by itself, and from time to time all meet.
//!
//! | row | what travels | what a meeting does |
//! |---|---|---|
//! | `local-sgd` | parameters, every `every` steps | they become their mean |
//! | `post-local-sgd` | gradients in each of the first `start` steps, then as `local-sgd` | – |
//! | `diloco` | the way from the last meeting, every `every` steps | d = mean(global − local), m ← μ·m + d, global ← global − η·(d + μ·m), local ← global |
//!
//! With several fragments the model is cut into parts of neighbouring buckets. Part `f` meets `(f + 1)·every/n` steps into each
//! round, which spreads the bytes over the round (streaming DiLoCo, Douillard et al. 2025). With an overlap of τ steps a
//! meeting runs during training: its result is merged τ steps later as local ← α·local + (1 − α)·global. The time of a merge
//! depends on step numbers alone, so runs repeat to the bit.
//!
//! Optimizers' states stay each rank's own. Where a device computes, steps, sums and outer steps are all its own: the host waits
//! for none.

mod meeting;
mod reduction;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use phalanx_collectives::{CommStats, Communicator};
use phalanx_tensor::{Array, HookResult, Listener, ParamBucket, ParamStore, ProcessGroup};

use self::meeting::Outer;
use self::reduction::Reduction;
use crate::asynchronous::replica::Replica;
use crate::parallel::{
    LocalModel, Observed, ParallelStrategy, RankCollectives, Residency, Resumable, SavedState, ShardRole,
    StateBytes, StepGuard, StepReports, StepToken, SyncStats, whole,
};
use crate::strategy::{Meeting, Partition, Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};

/// Ranks that train by themselves and meet after some steps. See the rows `local-sgd`, `post-local-sgd` and `diloco`.
///
/// As a listener it does nothing in local steps. What it shows between [`crate::Residency::unshard`] and
/// [`crate::Residency::reshard`] is the mean of the ranks' parameters.
#[derive(Debug)]
pub struct LocalSgd {
    replica: Replica,
    strategy: Strategy,
    meeting: Meeting,
    options: SyncOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Steps that this rank has ended.
    steps: u64,
    outer: Outer,
    reduction: Reduction,
    stats: SyncStats,
    /// State of a checkpoint, until it is put into effect.
    loaded: Option<Vec<(String, Vec<f32>)>>,
}

impl LocalSgd {
    /// Wraps a model, as [`crate::DataParallel::new`] does.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if the row is another, options do not fit, or parameters are not f32 or not kept where they are
    /// computed with; [`ShardingError::ModelsDiffer`]; and those of communication.
    pub fn new(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        options: SyncOptions,
    ) -> Result<Arc<Self>> {
        let Synchrony::Rounds(meeting) = strategy.synchrony else {
            return Err(ShardingError::strategy(
                strategy.name,
                "has no rounds of steps after which ranks meet",
            ));
        };
        options.check(&strategy)?;
        let replica = Replica::new(store, comm, strategy.name)?;
        let state = State {
            steps: 0,
            outer: Outer::default(),
            reduction: Reduction::default(),
            stats: SyncStats::default(),
            loaded: None,
        };
        let this = Self { replica, strategy, meeting, options, state: Mutex::new(state) };
        this.broadcast_state(store)?;
        Ok(Arc::new(this))
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if a step is open.
    pub fn begin_step(&self) -> Result<StepGuard<'_>> {
        StepGuard::begin(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if the gradients of the step after `steps` are summed over the ranks.
    fn sums_gradients(&self, steps: u64) -> bool {
        self.meeting == Meeting::AverageAfterStart && steps < self.options.start
    }

    /// Runs the synchronisations that are due after the current step.
    fn meet(&self, state: &mut State) -> Result<()> {
        let (steps, every) = (state.steps, self.options.every);
        let begun = Instant::now();
        let met = match self.meeting {
            Meeting::OuterStep => state.outer.after(steps, &self.replica, &self.options)?,
            Meeting::Average if steps.is_multiple_of(every) => self.replica.average().map(|()| 1)?,
            Meeting::AverageAfterStart
                if steps > self.options.start && (steps - self.options.start).is_multiple_of(every) =>
            {
                self.replica.average().map(|()| 1)?
            }
            _ => 0,
        };
        state.stats.meetings += met;
        state.stats.waited += begun.elapsed();
        Ok(())
    }
}

impl Listener for LocalSgd {
    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        let Some(at) = self.replica.complete(param)? else { return Ok(()) };
        let state = &mut *self.state();
        if self.sums_gradients(state.steps) {
            state.reduction.ready(&self.replica, at)?;
        }
        Ok(())
    }
}

impl ParallelStrategy for LocalSgd {
    fn params(&self) -> &[ParamBucket] {
        &self.replica.params
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        self.replica.begin()?;
        self.state().reduction = Reduction::default();
        Ok(())
    }

    fn micro_batch(&self, _: &StepToken, more: bool) {
        self.replica.micro_batch(more);
    }

    fn reduce(&self, _: &StepToken) -> Result<()> {
        let state = &mut *self.state();
        if !self.sums_gradients(state.steps) {
            return self.replica.scale_gradients(self.options.gradient_scale);
        }
        let begun = Instant::now();
        state.reduction.finish(&self.replica)?;
        state.stats.waited += begun.elapsed();
        let mean = self.options.gradient_scale / self.replica.ranks() as f64;
        self.replica.scale_gradients(mean)
    }

    fn end(&self, _: &StepToken, completed: bool) {
        self.state().reduction = Reduction::default();
        self.replica.end(completed);
    }

    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()> {
        change(&self.replica.params)?;
        if !self.replica.is_open() {
            return Ok(());
        }
        let state = &mut *self.state();
        state.steps += 1;
        self.meet(state)
    }
}

impl RankCollectives for LocalSgd {
    fn sum_owned(&self, _: &Array) -> Result<()> {
        Ok(())
    }

    fn any(&self, flag: &Array) -> Result<()> {
        self.replica.any(flag)
    }

    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.replica.sum(values)
    }

    fn batch_group(&self, _: usize) -> Result<Arc<dyn ProcessGroup>> {
        Ok(Replica::group())
    }
}

impl Residency for LocalSgd {
    fn unshard(&self) -> Result<()> {
        if let Some(distance) = self.replica.show_mean()? {
            self.state().stats.consensus_distance = Some(distance);
        }
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        self.replica.show_own()
    }

    fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        self.replica.broadcast_params()?;
        self.replica.broadcast_buffers(store)?;
        let state = &mut *self.state();
        let Some(loaded) = state.loaded.take() else {
            state.outer = match self.meeting {
                Meeting::OuterStep => Outer::beginning(&self.replica)?,
                _ => Outer::default(),
            };
            return Ok(());
        };
        let mut saved = SavedState::new(self.strategy.name, loaded);
        state.steps = saved.whole("clock")?.first().copied().unwrap_or(0);
        self.replica.load_own(&mut saved)?;
        if self.meeting == Meeting::OuterStep {
            state.outer = Outer::read(&mut saved, &self.replica, &self.options)?;
        }
        Ok(())
    }

    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        self.replica.broadcast_buffers(store)
    }
}

impl Resumable for LocalSgd {
    fn resume_at(&self, steps: u64) {
        self.state().steps = steps;
    }

    fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let state = self.state();
        let mut saved = vec![("clock".to_owned(), whole(&[state.steps]))];
        self.replica.save_own(&mut saved, |at| self.replica.values(at))?;
        state.outer.write(&mut saved)?;
        Ok(saved)
    }

    fn load_own_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.state().loaded = Some(state).filter(|state| !state.is_empty());
        Ok(())
    }
}

impl Observed for LocalSgd {
    fn name(&self) -> &'static str {
        self.strategy.name
    }

    fn role(&self) -> ShardRole {
        let (shard, shards) = (self.replica.comm.rank(), self.replica.ranks());
        ShardRole {
            shard,
            shards,
            replica: 0,
            parameters: Partition::Replicated,
            optimizer: Partition::Replicated,
        }
    }

    fn step_reports(&self) -> StepReports {
        StepReports::Delayed
    }

    fn local_model(&self) -> LocalModel {
        LocalModel::Own
    }

    fn bytes(&self) -> StateBytes {
        let [parameters, gradients] = self.replica.held();
        let synchrony = self.state().outer.bytes() + self.replica.kept_bytes();
        StateBytes { parameters, gradients, synchrony, ..StateBytes::default() }
    }

    fn stats(&self) -> CommStats {
        self.replica.comm.stats()
    }

    fn sync_stats(&self) -> SyncStats {
        self.state().stats.clone()
    }
}
