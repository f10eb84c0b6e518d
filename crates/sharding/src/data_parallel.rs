//! Data parallelism: every rank trains on its share of the batch, and holds of the model what the strategy's row says.
//!
//! One engine reads the row. Flat units that follow each other travel together, in *buckets*: small ones several, large ones
//! each alone. Of every bucket a rank owns a part, its *shard*: `chunk(rank)` of the elements, or, where the row has a
//! leader, all of them there and none elsewhere. What is not replicated is kept for that part only:
//!
//! | | replicated | sharded | at the leader |
//! |---|---|---|---|
//! | gradients | all-reduce as soon as a bucket's are complete | reduce-scatter; those of the whole bucket are freed | reduce to the leader; freed elsewhere |
//! | optimizer state | every rank updates everything | each rank updates its part; then an all-gather of parameters | the leader updates everything; then a broadcast of parameters |
//! | parameters | always there | gathered before a block runs, forward and backward, and freed after it | – |
//!
//! (Li et al. 2020; Rajbhandari et al. 2020; Zhao et al. 2023.)

mod bucket;
mod gradients;
mod parameters;
mod route;
mod state;
mod values;

pub(crate) use bucket::{BucketShare, shares};
pub use state::Share;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use phalanx_collectives::{CommStats, Communicator, Handle, ReduceOp};
use phalanx_tensor::{HookResult, Listener, ParamStore, ProcessGroup, Unit};

use self::bucket::{Bucket, BucketMemory, lay_out};
use self::gradients::Reductions;
use self::parameters::Gathered;
use self::route::Pass;
use crate::buffer::TensorBuffer;
use crate::hook::CommHook;
use crate::options::Options;
use crate::process_group::RankGroup;
use crate::strategy::{Held, ShardAxis, Strategy};
use crate::{ProcessMesh, Result, ShardingError};

/// Makes ranks that each train on a share of the batch into one, unit by unit, while forward and backward run.
///
/// Give it to every [`phalanx_tensor::Session`] as listener: as soon as a bucket's gradients are complete their
/// reduction starts on the communication thread. Buckets are reduced strictly from the last to the first, whatever
/// order they complete in, so that all ranks issue the same operations in the same order even if one of them had
/// no sample. [`DataParallel::finish_gradients`] waits for all. Then give [`DataParallel::units`] to the optimizer, and call
/// [`DataParallel::finish_update`].
///
/// Gradients are *summed*: divide each rank's loss by the size of the global batch
/// ([`phalanx_tensor::loss::Over::Count`]) and the sum is the gradient of the global mean, also when ranks have
/// different numbers of samples. With gradient accumulation, call [`DataParallel::accumulate`] with true for all but the
/// last micro-batch: nothing is reduced then.
#[derive(Debug)]
pub struct DataParallel {
    comm: Communicator,
    /// The ranks that share what is sharded.
    shards: Communicator,
    /// The ranks that hold the same shards in other groups, if there are groups.
    replicas: Option<Communicator>,
    strategy: Strategy,
    /// In the order of the store's units.
    places: Vec<Place>,
    buckets: Vec<Bucket>,
    /// Trainable buckets, last first: the order of reduction.
    order: Vec<usize>,
    /// By name.
    blocks: BTreeMap<String, Block>,
    /// The buckets of each block, by the blocks' numbers.
    block_buckets: Vec<Vec<usize>>,
    hook: Option<Arc<dyn CommHook>>,
    prefetch: usize,
    gathered_bytes: usize,
    state: Mutex<Progress>,
}

/// The rank that holds what [`Held::Leader`] says.
const LEADER: usize = 0;

/// A block of the model and the buckets that its parameters lie in.
#[derive(Debug)]
struct Block {
    index: usize,
    buckets: Vec<usize>,
}

/// A unit, where it lies in its bucket, and this rank's part of it.
#[derive(Debug)]
struct Place {
    whole: Unit,
    /// What the optimizer acts on: the part, or the whole if the optimizer's state is replicated.
    own: Unit,
    /// The elements of the part, in the unit.
    range: Range<usize>,
    /// Its elements in the bucket.
    lies: Range<usize>,
    bucket: usize,
    /// Whether the parameters leave memory between uses.
    released: bool,
}

#[derive(Debug, Default)]
struct Progress {
    reductions: Reductions,
    gathered: Gathered,
    /// By bucket.
    memory: Vec<BucketMemory>,
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
        Self::with_options(store, comm, strategy, Options::default())
    }

    /// Distributes a store as [`DataParallel::new`] does, with options that must be the same on all ranks.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world is not whole groups; otherwise as [`DataParallel::new`].
    pub fn with_options(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        options: Options,
    ) -> Result<Arc<Self>> {
        check_same_model(store, &comm)?;
        let (shards, replicas) = match strategy.axis {
            ShardAxis::World => (comm.clone(), None),
            ShardAxis::Group => {
                let group = if options.group == 0 { natural_group(comm.hosts()) } else { options.group };
                let replicas = comm.world_size().checked_div(group).unwrap_or(0);
                let axes = [("replicate", replicas), ("shard", group)];
                let mesh = ProcessMesh::new(comm.clone(), &axes)?;
                (mesh.axis("shard")?.clone(), Some(mesh.axis("replicate")?.clone()))
            }
        };
        let gathers = strategy.placement.parameters == Held::Sharded && shards.world_size() > 1;
        let overlaps = options.overlap.decide(&comm, gathers, options.threads.max(1))?;
        let [comm, shards] = [comm, shards].map(|comm| if overlaps { comm } else { comm.blocking() });
        let replicas = replicas.map(|comm| if overlaps { comm } else { comm.blocking() });
        let shard = (shards.rank(), shards.world_size());
        let (buckets, places) = lay_out(store.units(), strategy.placement, shard, options.bucket_bytes);
        let mut order: Vec<usize> = (0..buckets.len()).filter(|at| buckets[*at].trainable).collect();
        order.reverse();
        let mut blocks: BTreeMap<String, Block> = BTreeMap::new();
        for place in places.iter().filter(|place| !place.whole.block().is_empty()) {
            let index = blocks.len();
            let name = place.whole.block().to_owned();
            let block = blocks.entry(name).or_insert(Block { index, buckets: Vec::new() });
            if !block.buckets.contains(&place.bucket) {
                block.buckets.push(place.bucket);
            }
        }
        let mut block_buckets = vec![Vec::new(); blocks.len()];
        blocks.values().for_each(|block| block_buckets[block.index] = block.buckets.clone());
        let memory = buckets.iter().map(|_| BucketMemory::default()).collect();
        let this = Self {
            comm,
            shards,
            replicas,
            strategy,
            places,
            buckets,
            order,
            blocks,
            block_buckets,
            hook: options.hook,
            prefetch: options.prefetch,
            gathered_bytes: options.gathered_bytes,
            state: Mutex::new(Progress { memory, ..Progress::default() }),
        };
        this.fill(store.key())?;
        this.broadcast_state(store)?;
        Ok(Arc::new(this))
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// What communication has cost so far, that inside groups and between them included.
    pub fn stats(&self) -> CommStats {
        let mut parts: Vec<CommStats> = self.state().first_ranks.values().map(Communicator::stats).collect();
        if let Some(replicas) = &self.replicas {
            parts.push(replicas.stats());
            // A group of all ranks talks over the world's communicator.
            parts.extend((self.shards.world_size() < self.comm.world_size()).then(|| self.shards.stats()));
        }
        parts.into_iter().fold(self.comm.stats(), |sum, part| CommStats {
            operations: sum.operations + part.operations,
            bytes_sent: sum.bytes_sent + part.bytes_sent,
            bytes_received: sum.bytes_received + part.bytes_received,
            seconds_busy: sum.seconds_busy + part.seconds_busy,
            seconds_exposed: sum.seconds_exposed + part.seconds_exposed,
        })
    }

    /// The strategy that is being followed.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// What the optimizer, clipping and averages act on: whole units, or this rank's parts of them, those left out that are
    /// empty.
    pub fn units(&self) -> Vec<Unit> {
        let own = self.places.iter().map(|place| &place.own);
        own.filter(|unit| !unit.is_empty()).cloned().collect()
    }

    /// Whether [`DataParallel::units`] are parts, so that sums over their elements must be summed over ranks.
    pub fn is_sharded(&self) -> bool {
        self.strategy.placement.optimizer != Held::Replicated
    }

    /// Makes every rank's buffer of a whole unit complete from the parts that the ranks own.
    fn bring_together(&self, whole: Tensor) -> Handle<TensorBuffer> {
        match self.strategy.placement.optimizer {
            Held::Leader => self.shards.broadcast_async(TensorBuffer(whole), LEADER),
            Held::Replicated | Held::Sharded => self.shards.all_gather_in_place_async(TensorBuffer(whole)),
        }
    }

    /// Replaces every number by its sum over the ranks that share what is sharded: sums over the elements of
    /// [`DataParallel::units`] become those over all elements.
    ///
    /// # Errors
    /// Those of communication.
    pub fn sum_shards(&self, values: &mut [f64]) -> Result<()> {
        if self.is_sharded() {
            self.shards.all_reduce(values, ReduceOp::Sum)?;
        }
        Ok(())
    }

    /// Whether parameters leave memory between uses.
    fn releases(&self) -> bool {
        self.strategy.placement.parameters == Held::Sharded
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The ranks that the global batch is spread over, for [`phalanx_tensor::Session::batch_group`].
    pub fn batch_group(&self) -> Arc<dyn ProcessGroup> {
        RankGroup::of(&self.comm)
    }

    /// The first `ranks` ranks only: those that have samples of a batch that is too small for all. The others
    /// take no part in what depends on all of it, but call this at the same place; reduce no gradients before the last micro-batch
    /// that any rank has ([`DataParallel::accumulate`]), so that the ranks' operations keep one order.
    ///
    /// # Errors
    /// Those of communication.
    pub fn batch_group_among(&self, ranks: usize) -> Result<Arc<dyn ProcessGroup>> {
        if ranks == self.comm.world_size() {
            return Ok(self.batch_group());
        }
        let known = self.state().first_ranks.get(&ranks).cloned();
        let part = match known {
            Some(part) => part,
            None => {
                let colour = u32::from(self.comm.rank() >= ranks);
                let part = self.comm.split(Some(colour), 0)?;
                let part =
                    part.ok_or_else(|| ShardingError::Mesh("a rank with a colour got no group".into()))?;
                self.state().first_ranks.insert(ranks, part.clone());
                part
            }
        };
        Ok(RankGroup::of(&part))
    }

    /// Replaces every number by its sum over the ranks: losses, counts, requests to stop.
    ///
    /// # Errors
    /// Those of communication.
    pub fn sum_scalars(&self, values: &mut [f64]) -> Result<()> {
        Ok(self.comm.all_reduce(values, ReduceOp::Sum)?)
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

    fn gradients_ready(&self, unit: &Unit) -> HookResult {
        Ok(self.ready(unit)?)
    }
}

/// How many ranks belong together: those of a host, if there are several hosts with as many ranks each, one after the other.
pub(crate) fn natural_group(hosts: &[usize]) -> usize {
    let world = hosts.len();
    let first = hosts.iter().take_while(|host| **host == hosts[0]).count().max(1);
    let even =
        world.is_multiple_of(first) && hosts.iter().enumerate().all(|(rank, host)| *host == rank / first);
    if even && first < world {
        return first;
    }
    (1..world).rev().find(|size| world.is_multiple_of(*size)).unwrap_or(1)
}

/// Compares what ranks built, parameter by parameter.
fn check_same_model(store: &ParamStore, comm: &Communicator) -> Result<()> {
    let describe = |unit: &Unit| {
        let of = |entry: &phalanx_tensor::UnitEntry| format!("{} {:?}", entry.name, entry.shape.dims());
        let kind = if unit.trainable() { "trainable" } else { "frozen" };
        unit.entries().iter().map(|entry| format!("{} ({kind})", of(entry))).collect::<Vec<_>>()
    };
    let mut own = store.units().iter().flat_map(describe).collect::<Vec<_>>();
    if store.units().iter().any(|unit| unit.values().is_none()) {
        // Ranks will fill parts of it, which must be parts of the same.
        own.push(format!("initial values of {:?}", store.key()));
    }
    let own = own.join("\n");
    let all = comm.all_gatherv(own.as_bytes())?;
    let first = String::from_utf8_lossy(&all[0]).into_owned();
    for (rank, other) in all.iter().enumerate() {
        if *other != all[0] {
            let other = String::from_utf8_lossy(other).into_owned();
            let differs = first.lines().zip(other.lines()).find(|(a, b)| a != b);
            let difference = match differs {
                Some((a, b)) => format!("`{b}` where rank 0 has `{a}`"),
                None => format!("{} parameters instead of {}", other.lines().count(), first.lines().count()),
            };
            return Err(ShardingError::ModelsDiffer { rank, difference });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::natural_group;

    #[test]
    fn hosts_are_groups_if_they_are_alike() {
        for (hosts, group) in [
            (&[0, 0, 1, 1][..], 2),
            (&[0, 0, 0, 1, 1, 1], 3),
            (&[0, 0, 0, 0], 2),
            (&[0, 0, 0, 1], 2),
            (&[0, 1, 0, 1], 2),
            (&[0, 0, 0], 1),
            (&[0, 1], 1),
            (&[0], 1),
        ] {
            assert_eq!(natural_group(hosts), group, "{hosts:?}");
        }
    }
}
