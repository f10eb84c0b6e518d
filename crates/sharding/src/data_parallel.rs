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

mod coding;
mod gradients;
mod logical;
mod parameters;
mod prefetch;
mod rounding;
mod shards;
mod weights;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Add as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_collectives::{CommStats, Communicator, ReduceOp};
use phalanx_tensor::{Array, HookResult, Listener, ParamBucket, ParamState, ParamStore, ProcessGroup};

use self::coding::Coding;
use self::gradients::{Reduction, Reductions};
use self::logical::Logical;
use self::parameters::Gathered;
use self::prefetch::Pass;
use self::rounding::Rounding;
use self::weights::WeightGather;
use crate::agreement::{any_of, broadcast_buffers, check_same_model};
use crate::buffer::InPlace;
use crate::codec::{CodecState, CodecVerdict, Groups, Route, nothing_kept};
use crate::logical::LogicalRanks;
use crate::mesh::part;
use crate::options::{Options, Overlap};
use crate::parallel::{ParallelStrategy, ShardRole, StateBytes, Step, StepToken};
use crate::process_group::RankGroup;
use crate::strategy::{LEADER, Layout, ShardAxis, StateLayout, Strategy};
use crate::{ProcessMesh, Result, ShardingError};

/// The bulk-synchronous strategies: all ranks take each step together, and have the same parameters after it.
///
/// As listener it starts the reduction of a bucket's gradients as soon as they are complete, on the communication thread.
/// Buckets are reduced strictly from the last to the first, whatever order they complete in, so that all ranks issue the same
/// operations in the same order even if one of them had no sample.
///
/// Gradients are *summed*: divide each rank's loss by the size of the global batch
/// ([`phalanx_tensor::loss::Over::Count`]) and the sum is the gradient of the global mean, also when ranks have
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
    /// What the flight recorder says of operations on each of them.
    labels: Vec<Arc<str>>,
    /// Trainable buckets, last first: the order of reduction.
    order: Vec<usize>,
    /// The number of each block, where parameters come and go with blocks.
    blocks: BTreeMap<String, usize>,
    /// By block, the buckets that its parameters lie in.
    buckets: Vec<Vec<usize>>,
    options: Options,
    /// What gradients go by instead of themselves, if there is a codec.
    coding: Option<Coding>,
    /// What sums the gradients of logical ranks, if there are any.
    logical: Option<Logical>,
    /// What gradients of a device are on their way.
    rounding: Rounding,
    /// What gathers parameters rounded, if they are to be.
    weights: Option<WeightGather>,
    state: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    /// The reductions of the step that is under way.
    step: Option<Reductions>,
    gathered: Gathered,
    /// Communicators of so many first ranks and of the others, for batches that are too small for all.
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
        Self::with_options(store, strategy.mesh(comm, 0)?, strategy, Options::default())
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

    /// Wraps a model as [`DataParallel::new`] does, with a mesh of the axes that the strategy needs ([`Strategy::mesh`]), and
    /// with options, which must be the same on all ranks.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the mesh lacks an axis, [`ShardingError::Strategy`] if the strategy cannot go by the
    /// algorithm, gathers no parameters that could be quantised, or cannot have them kept on the host, [`ShardingError::Codec`] if the codec does not know the
    /// gradients' type or the processor that computes them, or there are logical ranks, [`ShardingError::LogicalRanks`] if these are too
    /// few; otherwise as [`DataParallel::new`].
    pub fn with_options(
        store: &ParamStore,
        mesh: ProcessMesh,
        strategy: Strategy,
        options: Options,
    ) -> Result<Arc<Self>> {
        if !strategy.is_bulk_synchronous() {
            let problem = "does not take every step together; `share` makes it".to_owned();
            return Err(ShardingError::Strategy { name: strategy.name.to_owned(), problem });
        }
        strategy.goes_by(options.algorithm)?;
        let comm = mesh.data().clone();
        let params = store.buckets().to_vec();
        let offloaded = params.iter().any(ParamBucket::is_offloaded);
        if offloaded {
            strategy.keeps_on_host()?;
        }
        let trainable = || params.iter().enumerate().filter(|(_, param)| param.trainable());
        if let Some(weights) = options.weights {
            strategy.moves_parameters()?;
            let other = params.iter().find(|param| param.dtype() != candle_core::DType::F32);
            if let Some(param) = other {
                let problem = format!("rounds parameters of f32, not {}", param.dtype().as_str());
                return Err(ShardingError::codec(weights.name(), problem));
            }
        }
        if let Some(codec) = &options.codec {
            let other = trainable().find(|(_, param)| param.dtype() != candle_core::DType::F32);
            if let Some((_, param)) = other {
                let problem = format!("encodes gradients of f32, not {}", param.dtype().as_str());
                return Err(ShardingError::codec(codec.name(), problem));
            }
        }
        let placed = options.logical_ranks.map(|logical| LogicalRanks::new(logical, comm.world_size()));
        let placed = placed.transpose()?;
        if placed.is_some() {
            options.sums_exactly()?;
        }
        check_same_model(store, &comm)?;
        let (shards, replicas) = match strategy.axis {
            ShardAxis::World => (&comm, None),
            ShardAxis::Group => (mesh.axis("shard")?, Some(mesh.axis("replicate")?)),
        };
        let gathers = offloaded || (strategy.layout.parameters == Layout::Sharded && shards.world_size() > 1);
        // What lies on a GPU is moved by the GPU, and takes no core from computing.
        let on_host = params.iter().all(|param| param.device().is_host());
        let overlaps = options.overlap.decide(&comm, gathers && on_host, options.threads.max(1))?;
        let timely = |comm: Communicator| if overlaps { comm } else { comm.blocking() };
        let by = |comm: &Communicator| timely(comm.using(options.algorithm));
        let rounds = options.weights.filter(|_| gathers && shards.world_size() > 1);
        // What a device does beside computing it is given by the thread that trains.
        let beside = overlaps && on_host;
        let weights =
            rounds.map(|rounding| WeightGather::new(part(shards, 0)?, rounding, beside)).transpose()?;
        let rounding = if on_host { Rounding::default() } else { Rounding::of(&options)? };
        // Of one rank there is nothing to send, and nothing that could.
        let coded = on_host || !rounding.rounds() && comm.world_size() > 1;
        let coding = match options.codec.as_ref().filter(|_| coded) {
            None => None,
            Some(codec) => {
                let place = |comm: &Communicator| (comm.rank(), comm.world_size());
                let (rank, ranks) = place(&comm);
                let group = options.codec_scope.group(&strategy, comm.hosts());
                let links = match group {
                    None => (part(shards, 0)?, replicas.map(|replicas| part(replicas, 0)).transpose()?),
                    Some(group) => (part(&comm, rank / group)?, Some(part(&comm, rank % group)?)),
                };
                let route = Route {
                    strategy,
                    scope: options.codec_scope,
                    algorithm: options.algorithm,
                    shard: place(shards),
                    replica: replicas.map(place),
                    groups: group.map(|group| Groups::of(rank, ranks, group)),
                };
                Some(Coding::new(codec.clone(), route, links, &params, (options.codec_when, beside))?)
            }
        };
        let logical = placed.map(|placed| {
            let links = (
                part(&comm, 0)?,
                shards.world_size(),
                replicas.map(|replicas| part(replicas, 0)).transpose()?,
            );
            Logical::new(placed, strategy.layout.gradients, links, (params.len(), beside))
        });
        let logical = logical.transpose()?;
        let (shards, replicas) = (by(shards), replicas.map(by));
        let order = trainable().map(|(at, _)| at).rev().collect();
        let (mut blocks, mut buckets) = (BTreeMap::new(), Vec::new());
        for (at, param) in params.iter().enumerate().filter(|_| gathers) {
            for block in param.blocks().filter(|block| !block.is_empty()) {
                let index = *blocks.entry(block.to_owned()).or_insert(buckets.len());
                buckets.resize(buckets.len().max(index + 1), Vec::new());
                buckets[index].push(at);
            }
        }
        let labels = params.iter().enumerate().map(|(at, param)| {
            let first = param.entries().first().map_or("nothing", |entry| entry.name.as_str());
            Arc::from(format!("bucket {at}, from {first}"))
        });
        let this = Self {
            labels: labels.collect(),
            comm: timely(comm),
            mesh,
            shards,
            replicas,
            strategy,
            params,
            order,
            blocks,
            buckets,
            options,
            coding,
            logical,
            rounding,
            weights,
            state: Mutex::default(),
        };
        this.fill(store.key())?;
        this.broadcast_state(store)?;
        Ok(Arc::new(this))
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if there is one under way.
    pub fn begin_step(&self) -> Result<Step<'_>> {
        Step::begin(self)
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The strategy that is being followed.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Whether parameters are kept on the host, and come to a device with the blocks that use them.
    fn is_offloaded(&self) -> bool {
        self.params.iter().any(ParamBucket::is_offloaded)
    }

    /// Whether a bucket's parameters come and go with blocks.
    fn leaves_memory(&self, param: &ParamBucket) -> bool {
        param.is_offloaded() || self.strategy.layout.leaves_memory(param, self.shards.world_size())
    }

    /// The buckets whose reduction has not started, `started` having.
    fn unstarted(&self, started: usize) -> impl Iterator<Item = &ParamBucket> + Clone {
        self.order[started..].iter().map(|at| &self.params[*at])
    }

    /// Whether ranks own different elements.
    fn is_sharded(&self) -> bool {
        self.strategy.layout.optimizer != Layout::Replicated
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
        let is_last = match self.logical.as_ref().zip(step.shards.as_mut()) {
            Some((logical, shards)) => shards.ready(param, logical.spares())?,
            None => !step.accumulating,
        };
        if !is_last {
            return Ok(());
        }
        step.ready[param.index()] = true;
        while self.order.get(step.started).is_some_and(|next| step.ready[*next]) {
            self.start(step)?;
        }
        // What is done meanwhile makes room at once. Where gradients are sharded, or go to the host, there is room for those of a few
        // buckets, as for parameters; backward waits if it is that much faster than the others.
        let scatters = self.strategy.layout.scatters();
        // Where shards go on to other groups that does not depend on who is how fast, so that all ranks issue the same. Nor does it
        // on a GPU, which may have the step's work as a graph, and lets nobody wait.
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
    fn name(&self) -> &'static str {
        self.strategy.name
    }

    fn params(&self) -> &[ParamBucket] {
        &self.params
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        let mut state = self.state();
        if state.step.is_some() {
            return Err(ShardingError::Step("one is under way already; finish or drop it first"));
        }
        self.params.iter().for_each(ParamBucket::zero_grads);
        let shards = self.logical.as_ref().map(|logical| logical.slots(self.params.len()));
        state.step = Some(Reductions::new(self.params.len(), shards));
        Ok(())
    }

    fn shard_turn(&self, at: usize, more: Option<bool>) -> Result<()> {
        let mut state = self.state();
        let outside = ShardingError::Step("a logical rank had its turn outside of any; begin one before");
        let step = state.step.as_mut().ok_or(outside)?;
        let Some((logical, shards)) = self.logical.as_ref().zip(step.shards.as_mut()) else { return Ok(()) };
        shards.turn(at, more, self.unstarted(step.started), logical.spares())
    }

    fn micro_batch(&self, _: &StepToken, more: bool) {
        if let Some(reductions) = &mut self.state().step {
            reductions.accumulating = more;
        }
    }

    fn reduce(&self, _: &StepToken) -> Result<()> {
        let mut state = self.state();
        let Some(step) = &mut state.step else { return Ok(()) };
        if let Some((logical, shards)) = self.logical.as_ref().zip(step.shards.as_mut()) {
            shards.settle(self.unstarted(step.started), logical.spares())?;
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
        // What is still on its way keeps its memory until it arrives, and nobody looks at it.
        state.step = None;
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
                (ParamState::Full, Some(full)) if param.trainable() && self.is_sharded() => {
                    let shards = self.shards.about(&self.labels[at]);
                    coming.push(match self.strategy.layout.optimizer {
                        Layout::Leader => shards.broadcast_async(InPlace::new(full)?, LEADER),
                        _ => shards.all_gather_in_place_async(InPlace::new(full)?),
                    });
                }
                _ => {}
            }
        }
        coming.into_iter().try_for_each(|handle| Ok(handle.wait().map(drop)?))
    }

    fn sum_owned(&self, sums: &Array) -> Result<()> {
        if self.is_sharded() && self.shards.world_size() > 1 {
            self.shards.all_reduce(&mut InPlace::of(sums)?, ReduceOp::Sum)?;
        }
        Ok(())
    }

    fn any(&self, flag: &Array) -> Result<()> {
        any_of(flag, &self.comm)
    }

    fn sum(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce(values, ReduceOp::Sum)?)
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

    fn role(&self) -> ShardRole {
        let StateLayout { parameters, optimizer, .. } = self.strategy.layout;
        let (shard, shards) = (self.shards.rank(), self.shards.world_size());
        let replica = self.replicas.as_ref().map_or(0, Communicator::rank);
        ShardRole { shard, shards, replica, parameters, optimizer }
    }

    fn bytes(&self) -> StateBytes {
        let held = self.params.iter().map(ParamBucket::held_bytes);
        let [parameters, gradients] =
            held.fold([0; 2], |sum, held| [0, 1].map(|of| sum[of] + held[of] as u64));
        let codec = self.coding.as_ref().map_or(0, |coding| coding.state_bytes(&self.order));
        let state = self.state();
        let wire = state.step.as_ref().map_or(0, Reductions::wire_bytes);
        let of_shards = state.step.as_ref().and_then(|step| step.shards.as_ref());
        let spare = self.logical.as_ref().map_or(0, |logical| logical.spares().bytes());
        let gradients = gradients + spare + of_shards.map_or(0, shards::ShardSlots::bytes);
        StateBytes { parameters, gradients, codec, wire, synchrony: 0 }
    }

    fn peak_gathered_bytes(&self) -> u64 {
        self.state().gathered.peak as u64
    }

    fn stats(&self) -> CommStats {
        let state = self.state();
        let parts = state.first_ranks.values().map(Communicator::stats);
        let beside =
            self.coding.iter().map(Coding::stats).chain(self.weights.iter().map(WeightGather::stats));
        let beside = beside.chain(self.logical.iter().map(Logical::stats));
        parts.chain(beside).fold(self.mesh.stats(), CommStats::add)
    }

    fn codec_verdicts(&self) -> Vec<CodecVerdict> {
        self.coding.as_ref().map_or_else(Vec::new, Coding::verdicts)
    }

    fn codec_state(&self) -> Result<CodecState> {
        self.coding.as_ref().map_or(Ok(CodecState::new()), Coding::state)
    }

    fn load_codec_state(&self, state: CodecState) -> Result<()> {
        match &self.coding {
            Some(coding) => coding.load_state(state),
            None => nothing_kept("none", &state),
        }
    }
}
