//! Data parallelism: every rank trains on its share of the batch, and holds of the model what the strategy's row says.
//!
//! One engine reads the row. Of every flat unit a rank owns a part, its *shard*, `chunk(rank)` of the elements. What is
//! sharded is kept for that part only:
//!
//! | | replicated | sharded |
//! |---|---|---|
//! | gradients | all-reduce as soon as a unit's are complete | reduce-scatter; the whole unit's gradients are freed |
//! | optimizer state | every rank updates everything | each rank updates its part; then an all-gather of parameters |
//! | parameters | always there | gathered before a block runs, forward and backward, and freed after it |
//!
//! (Li et al. 2020; Rajbhandari et al. 2020; Zhao et al. 2023.)

mod gradients;
mod parameters;
mod state;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use phalanx_collectives::{CommStats, Communicator, ReduceOp};
use phalanx_tensor::host::{HostSliceMut, copy_host, with_host_slice_mut};
use phalanx_tensor::{HookResult, Key, Listener, ParamStore, StatsSync, Unit};

use self::gradients::Reductions;
use self::parameters::Gathered;
use crate::statistics::RankSum;
use crate::strategy::{Held, ShardAxis, Strategy};
use crate::{Mesh, Result, ShardingError};

/// Makes ranks that each train on a share of the batch into one, unit by unit, while forward and backward run.
///
/// Give it to every [`phalanx_tensor::Session`] as listener: as soon as a unit's gradients are complete their
/// reduction starts on the communication thread. Units are reduced strictly from the last to the first, whatever
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
    /// Trainable places, last first: the order of reduction.
    order: Vec<usize>,
    state: Mutex<Progress>,
}

/// A unit and this rank's part of it.
#[derive(Debug)]
struct Place {
    whole: Unit,
    /// What the optimizer acts on: the part, or the whole if the optimizer's state is replicated.
    own: Unit,
    /// The elements of the part.
    range: Range<usize>,
    /// Whether the parameters leave memory between uses.
    released: bool,
}

#[derive(Debug, Default)]
struct Progress {
    reductions: Reductions,
    gathered: Gathered,
}

impl DataParallel {
    /// Wraps a model. Checks that all ranks built the same one, and makes their parameters and buffers equal to
    /// rank 0's; then keeps what the strategy says. Of a store that was built without values (`fill: false`) every rank fills
    /// what it holds, so that no rank ever holds more; all must have built it with the same key. Groups, where the strategy has them, are the hosts if they have as many
    /// ranks each, and otherwise as many ranks as the largest proper divisor of the world size.
    ///
    /// # Errors
    /// [`ShardingError::ModelsDiffer`] naming the first difference, and those of communication.
    pub fn new(store: &ParamStore, comm: Communicator, strategy: Strategy) -> Result<Arc<Self>> {
        let group = natural_group(comm.hosts());
        Self::with_groups(store, comm, strategy, group)
    }

    /// The same with groups of `group` ranks that follow each other, where the strategy has groups.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if the world is not whole groups; otherwise as [`DataParallel::new`].
    pub fn with_groups(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        group: usize,
    ) -> Result<Arc<Self>> {
        check_same_model(store, &comm)?;
        let (shards, replicas) = match strategy.axis {
            ShardAxis::World => (comm.clone(), None),
            ShardAxis::Group => {
                let replicas = comm.world_size().checked_div(group).unwrap_or(0);
                let mesh = Mesh::new(&[("replicate", replicas), ("shard", group)], comm.world_size())?;
                let at = mesh.coordinates(comm.rank());
                let part = |colour: usize| -> Result<Communicator> {
                    let part = comm.split(Some(colour as u32), 0)?;
                    part.ok_or_else(|| ShardingError::Mesh("a rank with a colour got no group".into()))
                };
                (part(at[0])?, Some(part(at[1])?))
            }
        };
        let (rank, world) = (shards.rank(), shards.world_size());
        let placement = strategy.placement;
        let place = |unit: &Unit| {
            let range = rank * unit.len() / world..(rank + 1) * unit.len() / world;
            let sharded = placement.optimizer == Held::Sharded;
            Place {
                whole: unit.clone(),
                own: if sharded { unit.shard(range.clone()) } else { unit.clone() },
                range,
                // Parameters outside of any block are used at any time.
                released: placement.parameters == Held::Sharded && !unit.block().is_empty(),
            }
        };
        let places: Vec<Place> = store.units().iter().map(place).collect();
        let mut order: Vec<usize> = (0..places.len()).filter(|at| places[*at].whole.trainable()).collect();
        order.reverse();
        let this = Self { comm, shards, replicas, strategy, places, order, state: Mutex::default() };
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
        let parts = match &self.replicas {
            Some(replicas) => vec![self.shards.stats(), replicas.stats()],
            None => Vec::new(),
        };
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

    /// What the optimizer, clipping and averages act on: whole units, or this rank's parts of them.
    pub fn units(&self) -> Vec<Unit> {
        self.places.iter().map(|place| place.own.clone()).collect()
    }

    /// Whether [`DataParallel::units`] are parts, so that sums over their elements must be summed over ranks.
    pub fn is_sharded(&self) -> bool {
        self.strategy.placement.optimizer == Held::Sharded
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

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's, and keeps what the strategy says: at the start, and after
    /// loading a checkpoint into whole units. The parameters of all units must be in memory
    /// ([`DataParallel::summon`]).
    ///
    /// # Errors
    /// Those of communication.
    pub fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        for place in &self.places {
            let Some(values) = place.whole.values() else { continue };
            with_host_slice_mut(&values, |slice| match slice {
                HostSliceMut::F32(values) => self.comm.broadcast(values, 0),
                HostSliceMut::F64(values) => self.comm.broadcast(values, 0),
            })??;
            self.keep_part(place, &values)?;
        }
        self.state().gathered = Gathered::default();
        self.broadcast_buffers(store)
    }

    /// Draws the initial values of units that have none: all of them, or this rank's part.
    fn fill(&self, key: Key) -> Result<()> {
        for place in &self.places {
            if place.whole.values().is_some() {
                continue;
            }
            if place.released {
                let part = place.whole.initial_values(key, place.range.clone())?;
                place.own.set_values(Some(part))?;
            } else {
                let whole = place.whole.initial_values(key, 0..place.whole.len())?;
                place.whole.set_values(Some(whole))?;
            }
        }
        Ok(())
    }

    /// Takes this rank's part of a unit's values over, and releases the whole if it is to be.
    fn keep_part(&self, place: &Place, values: &Tensor) -> Result<()> {
        if !self.is_sharded() {
            return Ok(());
        }
        let part = values.narrow(0, place.range.start, place.range.len())?;
        if !place.released {
            // A view: what the optimizer writes is in the whole at once.
            place.own.set_values(Some(part))?;
            return Ok(());
        }
        match place.own.values() {
            Some(own) => copy_host(&own, &part)?,
            None => place.own.set_values(Some(part.force_contiguous()?))?,
        }
        place.whole.set_values(None)?;
        Ok(())
    }

    /// Makes all ranks' buffers equal to rank 0's. Without synchronised batch norm every rank has running
    /// statistics of its own samples; rank 0's are the ones that are saved, as in PyTorch's DDP, so call this
    /// before an evaluation that is spread over ranks.
    ///
    /// # Errors
    /// Those of communication.
    pub fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        // All buffers travel as one message of f64, which holds f32 and counters below 2⁵³ exactly.
        let mut all = Vec::new();
        for buffer in store.buffers() {
            let flat = buffer.tensor().flatten_all()?.to_dtype(candle_core::DType::F64)?;
            all.extend(flat.to_vec1::<f64>()?);
        }
        self.comm.broadcast(&mut all, 0)?;
        if self.comm.rank() == 0 {
            return Ok(());
        }
        let mut rest = all.as_slice();
        for buffer in store.buffers() {
            let (own, later) = rest.split_at(buffer.shape().elem_count());
            rest = later;
            let tensor = Tensor::from_slice(own, buffer.shape(), &candle_core::Device::Cpu)?;
            buffer.set(&tensor)?;
        }
        Ok(())
    }

    /// What sums statistics over ranks, for [`phalanx_tensor::Session::stats_sync`].
    pub fn stats_sync(&self) -> Arc<dyn StatsSync> {
        Arc::new(RankSum(self.comm.clone()))
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
        Ok(self.enter(block, parameters::Pass::Forward)?)
    }

    fn after_forward(&self, block: &str) -> HookResult {
        Ok(self.leave(block, parameters::Pass::Forward)?)
    }

    fn before_backward(&self, block: &str) -> HookResult {
        Ok(self.enter(block, parameters::Pass::Backward)?)
    }

    fn after_backward(&self, block: &str) -> HookResult {
        Ok(self.leave(block, parameters::Pass::Backward)?)
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
    let all = comm.all_gather_bytes(own.as_bytes())?;
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
