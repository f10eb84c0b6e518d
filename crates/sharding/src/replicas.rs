//! Data parallelism: every rank holds the whole model and a share of the batch.

use std::sync::{Arc, Mutex, PoisonError};

use phalanx_collectives::{Communicator, Handle, ReduceOp};
use phalanx_tensor::{HookResult, Listener, ParamStore, StatsSync, Unit};

use crate::buffer::TensorBuffer;
use crate::statistics::RankSum;
use crate::strategy::Strategy;
use crate::{Result, ShardingError};

/// Sums the gradients of replicas, unit by unit, while backward still runs (Li et al. 2020).
///
/// Give it to every [`phalanx_tensor::Session`] as listener: as soon as a unit's gradients are complete their
/// all-reduce starts on the communication thread. Units are reduced strictly from the last to the first, whatever
/// order they complete in, so that all ranks issue the same operations in the same order even if one of them had
/// no sample. [`DataParallel::finish_gradients`] waits for all.
///
/// Gradients are *summed*: divide each rank's loss by the size of the global batch
/// ([`phalanx_tensor::loss::Over::Count`]) and the sum is the gradient of the global mean, also when ranks have
/// different numbers of samples. With gradient accumulation, set the listener for the last micro-batch only.
#[derive(Debug)]
pub struct DataParallel {
    comm: Communicator,
    strategy: Strategy,
    /// Trainable units, last first: the order of reduction.
    units: Vec<Unit>,
    state: Mutex<Progress>,
}

/// How far the reductions of a step are.
#[derive(Debug, Default)]
struct Progress {
    ready: Vec<bool>,
    pending: Vec<Handle<TensorBuffer>>,
}

impl DataParallel {
    /// Wraps a model. Checks that all ranks built the same one, and makes their parameters and buffers equal to
    /// rank 0's.
    ///
    /// # Errors
    /// [`ShardingError::ModelsDiffer`] naming the first difference, and those of communication.
    pub fn new(store: &ParamStore, comm: Communicator, strategy: Strategy) -> Result<Arc<Self>> {
        check_same_model(store, &comm)?;
        let mut units: Vec<Unit> = store.units().iter().filter(|unit| unit.trainable()).cloned().collect();
        units.reverse();
        let ready = vec![false; units.len()];
        let state = Mutex::new(Progress { ready, pending: Vec::new() });
        let this = Arc::new(Self { comm, strategy, units, state });
        this.broadcast_state(store)?;
        Ok(this)
    }

    /// The communicator.
    pub fn communicator(&self) -> &Communicator {
        &self.comm
    }

    /// The strategy that is being followed.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Makes all ranks' parameters and buffers equal to rank 0's: at the start, and after loading a checkpoint.
    ///
    /// # Errors
    /// Those of communication.
    pub fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        for unit in store.units() {
            let Some(values) = unit.values() else { continue };
            phalanx_tensor::host::with_host_slice_mut(&values, |slice| match slice {
                phalanx_tensor::host::HostSliceMut::F32(values) => self.comm.broadcast(values, 0),
                phalanx_tensor::host::HostSliceMut::F64(values) => self.comm.broadcast(values, 0),
            })??;
        }
        self.broadcast_buffers(store)
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
            let tensor = candle_core::Tensor::from_slice(own, buffer.shape(), &candle_core::Device::Cpu)?;
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

    /// Waits until the gradients of all units are summed over the ranks; starts those that backward did not
    /// report (a rank without samples still takes part, with zeros). Call it once a step, before the optimizer.
    ///
    /// # Errors
    /// Those of communication.
    pub fn finish_gradients(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.pending.len() < self.units.len() {
            let unit = &self.units[state.pending.len()];
            let started = self.start(unit)?;
            state.pending.push(started);
        }
        state.ready.fill(false);
        for handle in std::mem::take(&mut state.pending) {
            handle.wait()?;
        }
        Ok(())
    }

    fn start(&self, unit: &Unit) -> Result<Handle<TensorBuffer>> {
        let grads = unit.grads_or_zeros()?;
        Ok(self.comm.all_reduce_async(TensorBuffer(grads), ReduceOp::Sum))
    }
}

impl Listener for DataParallel {
    fn gradients_ready(&self, unit: &Unit) -> HookResult {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(at) = self.units.iter().position(|known| known.is(unit)) else { return Ok(()) };
        state.ready[at] = true;
        while state.ready.get(state.pending.len()) == Some(&true) {
            let started = self.start(&self.units[state.pending.len()])?;
            state.pending.push(started);
        }
        Ok(())
    }
}

/// Compares what ranks built, parameter by parameter.
fn check_same_model(store: &ParamStore, comm: &Communicator) -> Result<()> {
    let describe = |unit: &Unit| {
        let of = |entry: &phalanx_tensor::UnitEntry| format!("{} {:?}", entry.name, entry.shape.dims());
        let kind = if unit.trainable() { "trainable" } else { "frozen" };
        unit.entries().iter().map(|entry| format!("{} ({kind})", of(entry))).collect::<Vec<_>>()
    };
    let own = store.units().iter().flat_map(describe).collect::<Vec<_>>().join("\n");
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
