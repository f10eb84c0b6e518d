//! Data parallelism: every rank trains on its share of the batch, and holds of the model what the strategy's row says.
//!
//! One engine reads the row. What is moved at a time is a [`ParamBucket`]. Of each a rank owns a shard, `chunk(rank)` of the
//! elements, or, where the row has a leader, all of them there and none elsewhere. What is not replicated is kept for that part
//! only:
//!
//! | | replicated | sharded | at the leader |
//! |---|---|---|---|
//! | gradients | all-reduce as soon as a bucket's are complete | reduce-scatter; those of the whole bucket are freed | reduce to the leader; freed elsewhere |
//! | optimizer state | every rank updates everything | each rank updates its part; then an all-gather of parameters | the leader updates everything; then a broadcast of parameters |
//! | parameters | always there | gathered before a block runs, forward and backward, and freed after it | – |
//!
//! (Li et al. 2020; Rajbhandari et al. 2020; Zhao et al. 2023.)

mod combinations;
mod construction;
mod gradients;
mod parameters;
mod prefetch;
mod reduction;
mod weights;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Add as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_collectives::{CommStats, Communicator, ReduceOp};
use phalanx_tensor::{Array, HookResult, Listener, ParamBucket, ParamState, ParamStore, ProcessGroup};

use self::gradients::{Reduction, Reductions};
use self::parameters::Gathered;
use self::prefetch::Pass;
use self::reduction::Reducer;
use self::weights::WeightGather;
use crate::consensus::{any_of, broadcast_buffers};
use crate::mesh::part;
use crate::mesh::process_group::RankGroup;
use crate::options::{Options, Overlap};
use crate::parallel::{
    Observed, ParallelStrategy, RankCollectives, Residency, Resumable, ShardRole, StateBytes, StepGuard,
    StepToken,
};
use crate::strategy::{Partition, ROOT, StatePartition, Strategy};
use crate::{ProcessMesh, Result, ShardingError};
use phalanx_codecs::buffer::InPlace;
use phalanx_codecs::{CodecState, CodecVerdict, nothing_kept};

/// The bulk-synchronous strategies: all ranks take each step together, and have the same parameters after it.
///
/// As listener it starts the reduction of a bucket's gradients as soon as they are complete, on the communication thread.
/// Buckets are reduced strictly from the last to the first, in any order of completion. So all ranks issue the same operations
/// in the same order, even if one of them had no sample.
///
/// Gradients are *summed*: divide each rank's loss by the size of the global batch
/// ([`phalanx_tensor::loss::LossDivisor::Count`]) and the sum is the gradient of the global mean, also when ranks have
/// different numbers of samples.
#[derive(Debug)]
pub struct DataParallel {
    mesh: ProcessMesh,
    /// All ranks that have samples of a batch.
    comm: Communicator,
    /// The ranks that share what is sharded.
    shards: Communicator,
    /// The ranks that hold the same shards in other groups, if there are groups.
    replicas: Option<Communicator>,
    strategy: Strategy,
    /// The buckets, in forward order.
    params: Vec<ParamBucket>,
    /// The label of each bucket's operations in the flight recorder.
    labels: Vec<Arc<str>>,
    /// Trainable buckets, last first: the order of reduction.
    order: Vec<usize>,
    /// The number of each block, where parameters come and go with blocks.
    blocks: BTreeMap<String, usize>,
    /// By block, the buckets that its parameters lie in.
    buckets: Vec<Vec<usize>>,
    options: Options,
    /// The way in which gradients are summed.
    reducer: Reducer,
    /// Gathers parameters rounded, if they are to be.
    weights: Option<WeightGather>,
    state: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The reductions of the step that is under way.
    step: Option<Reductions>,
    gathered: Gathered,
    /// Communicators of the first ranks and of the others, by the number of the first, for batches that are too small for
    /// all.
    first_ranks: BTreeMap<usize, Communicator>,
}

impl DataParallel {
    /// Wraps a model. Checks that all ranks built the same one, and makes their parameters and buffers equal to
    /// rank 0's; then keeps what the strategy says. Of a store that was built without values (`fill: false`) every rank
    /// fills what it holds, so that no rank ever holds more; all must have built it with the same key.
    ///
    /// # Errors
    /// [`ShardingError::ModelsDiffer`] naming the first difference, and those of communication.
    pub fn new(store: &ParamStore, comm: Communicator, strategy: Strategy) -> Result<Arc<Self>> {
        Self::with_options(store, ProcessMesh::suiting(comm, &strategy, 0)?, strategy, Options::default())
    }

    /// Wraps a model for the only rank, which computes and does nothing else.
    ///
    /// # Errors
    /// If the world of one rank cannot be made.
    pub fn alone(store: &ParamStore) -> Result<Arc<Self>> {
        Self::alone_with(store, Options { overlap: Overlap::Never, ..Options::default() })
    }

    /// Wraps a model for the only rank, as [`DataParallel::alone`] does, with options: how far ahead of its use what is kept on the
    /// host comes to a device.
    ///
    /// # Errors
    /// If the world of one rank cannot be made.
    pub fn alone_with(store: &ParamStore, options: Options) -> Result<Arc<Self>> {
        Self::with_options(store, ProcessMesh::alone()?, Strategy::named("ddp")?, options)
    }

    /// Wraps a model as [`DataParallel::new`] does, with a mesh of the axes that the strategy needs ([`ProcessMesh::suiting`]), and
    /// with options, which must be the same on all ranks.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the mesh lacks an axis; [`ShardingError::Strategy`] if the strategy cannot use the
    /// algorithm, gathers no parameters that could be quantised, or cannot keep them on the host; [`ShardingError::Codec`]
    /// if the codec does not know the gradients' type or their device, or if there are virtual ranks;
    /// [`ShardingError::VirtualRanks`] if there are too few virtual ranks; otherwise as [`DataParallel::new`].
    pub fn with_options(
        store: &ParamStore,
        mesh: ProcessMesh,
        strategy: Strategy,
        options: Options,
    ) -> Result<Arc<Self>> {
        construction::build(store, mesh, strategy, options)
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if there is one under way.
    pub fn begin_step(&self) -> Result<StepGuard<'_>> {
        StepGuard::begin(self)
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The strategy that is being followed.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// True if parameters are kept on the host, and come to a device with the blocks that use them.
    fn is_offloaded(&self) -> bool {
        self.params.iter().any(ParamBucket::is_offloaded)
    }

    /// True if a bucket's parameters come and go with blocks.
    fn leaves_memory(&self, param: &ParamBucket) -> bool {
        param.is_offloaded() || self.strategy.layout.leaves_memory(param, self.shards.world_size())
    }

    /// The buckets whose reduction has not started, `started` having. Frozen ones have none.
    fn unstarted(&self, started: usize) -> impl Iterator<Item = &ParamBucket> + Clone {
        self.order[started..].iter().map(|at| &self.params[*at]).filter(|param| !param.is_frozen())
    }

    /// True if the reduction of the next bucket in order can start.
    fn is_next_ready(&self, step: &Reductions) -> bool {
        let next = self.order.get(step.started);
        next.is_some_and(|next| step.ready[*next] || self.params[*next].is_frozen())
    }

    /// True if ranks own different elements.
    fn is_sharded(&self) -> bool {
        self.strategy.layout.optimizer != Partition::Replicated
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for DataParallel {
    fn before_forward(&self, block: &str) -> HookResult {
        Ok(self.enter(block, Pass::Forward)?)
    }

    fn after_forward(&self, block: &str) -> HookResult {
        Ok(self.leave(block)?)
    }

    fn before_backward(&self, block: &str) -> HookResult {
        Ok(self.enter(block, Pass::Backward)?)
    }

    fn after_backward(&self, block: &str) -> HookResult {
        Ok(self.leave(block)?)
    }

    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        // Networks may run on each other's tapes; and a tape may be differentiated for other ends.
        if !self.params.get(param.index()).is_some_and(|own| own.is(param)) {
            return Ok(());
        }
        let mut state = self.state();
        let outside = ShardingError::Step("gradients came outside of any; begin one before backward");
        let step = state.step.as_mut().ok_or(outside)?;
        let is_last = match &self.reducer.virtual_sum {
            Some(virtual_sum) => virtual_sum.ready(param)?,
            None => !step.accumulating,
        };
        if !is_last {
            return Ok(());
        }
        step.ready[param.index()] = true;
        while self.is_next_ready(step) {
            self.start(step)?;
        }
        // Finished reductions free their memory at once. Where gradients are sharded, or go to the host, there is room
        // for the gradients of a few buckets; backward waits if it is faster.
        let scatters = self.strategy.layout.scatters();
        // With groups, and on a GPU, the order must not depend on timing: all ranks issue the same operations, and a
        // GPU may replay the step as a graph.
        let on_host = param.device().is_host();
        let done = |reduction: &Reduction| on_host && self.replicas.is_none() && reduction.is_done();
        let leaves = self.is_offloaded();
        let crowds = (scatters || leaves) && !self.sums_on_device();
        let crowded = |running: usize| crowds && running > self.options.prefetch.max(1);
        while step.running.front().is_some_and(done) || crowded(step.running.len()) {
            let Some(oldest) = step.running.pop_front() else { break };
            self.finish(step, oldest)?;
        }
        Ok(())
    }
}

impl ParallelStrategy for DataParallel {
    fn params(&self) -> &[ParamBucket] {
        &self.params
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        let mut state = self.state();
        if state.step.is_some() {
            return Err(ShardingError::Step("one is under way already; finish or drop it first"));
        }
        self.params.iter().for_each(ParamBucket::zero_grads);
        if let Some(virtual_sum) = &self.reducer.virtual_sum {
            virtual_sum.begin_step(self.params.len());
        }
        state.step = Some(Reductions::new(self.params.len()));
        Ok(())
    }

    fn micro_batch(&self, _: &StepToken, more: bool) {
        if let Some(reductions) = &mut self.state().step {
            reductions.accumulating = more;
        }
    }

    fn reduce(&self, _: &StepToken) -> Result<()> {
        let mut state = self.state();
        let Some(step) = &mut state.step else { return Ok(()) };
        if let Some(virtual_sum) = &self.reducer.virtual_sum {
            virtual_sum.settle(self.unstarted(step.started))?;
        }
        // What backward did not report is started too: a rank without samples still takes part, with zeros.
        while step.started < self.order.len() {
            self.start(step)?;
        }
        while let Some(oldest) = step.running.pop_front() {
            self.finish(step, oldest)?;
        }
        std::mem::take(&mut step.crossing).into_iter().try_for_each(|last| self.finish(step, last))
    }

    fn end(&self, _: &StepToken, completed: bool) {
        let mut state = self.state();
        // A running reduction keeps its memory until it ends; its result is not used.
        state.step = None;
        if let Some(virtual_sum) = &self.reducer.virtual_sum {
            virtual_sum.end_step();
        }
        if !completed {
            state.gathered.open.clear();
            self.params.iter().for_each(ParamBucket::forget_grads);
        }
    }

    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()> {
        change(&self.params)?;
        if !self.is_sharded() && !self.is_offloaded() {
            return Ok(());
        }
        let mut state = self.state();
        let mut coming = Vec::new();
        for (at, param) in self.params.iter().enumerate() {
            // What was gathered before the update, or on the way for a pass that did not come, is old.
            self.receive(&mut state, at)?;
            match (param.state(), param.values()) {
                (ParamState::Gathered, _) => param.reshard()?,
                (ParamState::Full, Some(full)) if !param.is_frozen() && self.is_sharded() => {
                    let shards = self.shards.about(&self.labels[at]);
                    coming.push(match self.strategy.layout.optimizer {
                        Partition::Root => shards.broadcast_async(InPlace::new(full)?, ROOT),
                        _ => shards.all_gather_in_place_async(InPlace::new(full)?),
                    });
                }
                _ => {}
            }
        }
        coming.into_iter().try_for_each(|handle| Ok(handle.wait().map(drop)?))
    }
}

impl RankCollectives for DataParallel {
    fn sum_owned(&self, sums: &Array) -> Result<()> {
        if self.is_sharded() && self.shards.world_size() > 1 {
            self.shards.all_reduce(&mut InPlace::of(sums)?, ReduceOp::Sum)?;
        }
        match self.mesh.model() {
            Some(model) => Ok(model.all_reduce(&mut InPlace::of(sums)?, ReduceOp::Sum)?),
            None => Ok(()),
        }
    }

    fn any(&self, flag: &Array) -> Result<()> {
        any_of(flag, &self.comm)?;
        self.mesh.model().map_or(Ok(()), |model| any_of(flag, model))
    }

    fn sum(&self, values: &mut [f64]) -> Result<()> {
        let loss = if self.mesh.sums_loss_over_batch() { &self.comm } else { self.mesh.loss() };
        Ok(loss.all_reduce(values, ReduceOp::Sum)?)
    }

    fn batch_group(&self, ranks: usize) -> Result<Arc<dyn ProcessGroup>> {
        if ranks == self.comm.world_size() {
            return Ok(RankGroup::of(&self.comm));
        }
        let mut state = self.state();
        Ok(RankGroup::of(match state.first_ranks.entry(ranks) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(part(&self.comm, usize::from(self.comm.rank() >= ranks))?),
        }))
    }

    fn virtual_rank_turn(&self, at: usize, more: Option<bool>) -> Result<()> {
        let state = self.state();
        let outside = ShardingError::Step("a logical rank had its turn outside of any; begin one before");
        let step = state.step.as_ref().ok_or(outside)?;
        let Some(virtual_sum) = &self.reducer.virtual_sum else { return Ok(()) };
        virtual_sum.turn(at, more, self.unstarted(step.started))
    }
}

impl Residency for DataParallel {
    fn unshard(&self) -> Result<()> {
        let mut state = self.state();
        self.gather_all(&mut state)?;
        state.gathered.unsharded = true;
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        self.state().gathered.unsharded = false;
        (0..self.params.len()).try_for_each(|at| self.release(at))
    }

    fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        self.broadcast_params()?;
        self.broadcast_buffers(store)
    }

    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        broadcast_buffers(store, &self.comm)
    }
}

impl Resumable for DataParallel {
    fn codec_state(&self) -> Result<CodecState> {
        self.reducer.coded.as_ref().map_or(Ok(CodecState::new()), |coded| coded.state())
    }

    fn load_codec_state(&self, state: CodecState) -> Result<()> {
        match &self.reducer.coded {
            Some(coded) => coded.load_state(state),
            None => Ok(nothing_kept("none", &state)?),
        }
    }
}

impl Observed for DataParallel {
    fn name(&self) -> &'static str {
        self.strategy.name
    }

    fn role(&self) -> ShardRole {
        let StatePartition { parameters, optimizer, .. } = self.strategy.layout;
        let (shard, shards) = (self.shards.rank(), self.shards.world_size());
        let (replica, replicas) =
            self.replicas.as_ref().map_or((0, 1), |replicas| (replicas.rank(), replicas.world_size()));
        // Of ranks that do the same work the first saves.
        let replica = replica + replicas * self.mesh.duplicate();
        ShardRole { shard, shards, replica, parameters, optimizer }
    }

    fn bytes(&self) -> StateBytes {
        let held = self.params.iter().map(ParamBucket::held_bytes);
        let [parameters, gradients] =
            held.fold([0; 2], |sum, held| [0, 1].map(|of| sum[of] + held[of] as u64));
        let codec = self.reducer.coded.as_ref().map_or(0, |coded| coded.state_bytes(&self.order));
        let state = self.state();
        let wire = state.step.as_ref().map_or(0, Reductions::wire_bytes);
        let gradients = gradients + self.reducer.virtual_sum.as_ref().map_or(0, |sum| sum.bytes());
        StateBytes { parameters, gradients, codec, wire, synchrony: 0 }
    }

    fn peak_gathered_bytes(&self) -> u64 {
        self.state().gathered.peak as u64
    }

    fn stats(&self) -> CommStats {
        let state = self.state();
        let parts = state.first_ranks.values().map(Communicator::stats);
        let weights = self.weights.iter().map(WeightGather::stats);
        let own = [self.reducer.by.stats()].into_iter().chain(weights);
        parts.chain(own).fold(self.mesh.stats(), CommStats::add)
    }

    fn codec_verdicts(&self) -> Vec<CodecVerdict> {
        self.reducer.coded.as_ref().map_or_else(Vec::new, |coded| coded.verdicts())
    }
}
