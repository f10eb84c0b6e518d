//! Consensus of ranks: equal models, equal buffers, equal decisions.

use candle_core::Tensor;
use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_tensor::{Array, BucketEntry, ParamBucket, ParamState, ParamStore};

use crate::mesh::first_that_differs;
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::InPlace;

/// Compares what ranks built, parameter by parameter.
pub(crate) fn check_same_model(store: &ParamStore, comm: &Communicator) -> Result<()> {
    let describe = |param: &ParamBucket| {
        let kind = if param.trainable() { "trainable" } else { "frozen" };
        let of = |entry: &BucketEntry| format!("{} {:?} ({kind})", entry.name, entry.shape.dims());
        param.entries().iter().map(of).collect::<Vec<_>>()
    };
    let mut own = store.buckets().iter().flat_map(describe).collect::<Vec<_>>();
    if store.buckets().iter().any(|param| param.state() == ParamState::Absent) {
        // Ranks will fill parts of it, which must be parts of the same.
        own.push(format!("initial values of {:?}", store.key()));
    }
    let Some((rank, [first, other])) = first_that_differs(comm, &own.join("\n"))? else { return Ok(()) };
    let difference = match first.lines().zip(other.lines()).find(|(a, b)| a != b) {
        Some((a, b)) => format!("`{b}` where rank 0 has `{a}`"),
        None => format!("{} parameters instead of {}", other.lines().count(), first.lines().count()),
    };
    Err(ShardingError::ModelsDiffer { rank, difference })
}

/// Replaces a flag, 0 or 1, by 1 if any rank's is, where it lies.
pub(crate) fn any_of(flag: &Array, comm: &Communicator) -> Result<()> {
    match comm.world_size() {
        1 => Ok(()),
        _ => Ok(comm.all_reduce(&mut InPlace::of(flag)?, ReduceOp::Max)?),
    }
}

/// Makes all ranks' buffers equal to rank 0's.
pub(crate) fn broadcast_buffers(store: &ParamStore, comm: &Communicator) -> Result<()> {
    // All buffers travel as one message of f64, which holds f32 and counters below 2⁵³ exactly.
    let mut all = Vec::new();
    for buffer in store.buffers() {
        let flat = buffer.to_host()?.flatten_all()?.to_dtype(candle_core::DType::F64)?;
        all.extend(flat.to_vec1::<f64>()?);
    }
    comm.broadcast(&mut all, 0)?;
    if comm.rank() == 0 {
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
