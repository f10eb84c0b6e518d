//! Sums over ranks for ops whose statistics span the global batch.

use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_tensor::host::{HostSliceMut, with_host_slice_mut};
use phalanx_tensor::{Array, HookResult, StatsSync};

/// Adds the statistics of synchronised batch norm over all ranks. The ops of a model run in the same order on
/// every rank, so the sums meet between the same gradient reductions everywhere.
#[derive(Debug)]
pub(crate) struct RankSum(pub(crate) Communicator);

impl StatsSync for RankSum {
    fn all_reduce_sum(&self, numbers: &Array) -> HookResult {
        with_host_slice_mut(numbers.host("sum of statistics")?, |numbers| match numbers {
            HostSliceMut::F32(values) => self.0.all_reduce(values, ReduceOp::Sum),
            HostSliceMut::F64(values) => self.0.all_reduce(values, ReduceOp::Sum),
        })??;
        Ok(())
    }
}
