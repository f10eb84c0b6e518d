//! A communicator as the group of ranks that ops over ranks work with.

use std::sync::Arc;

use phalanx_collectives::{CommError, Communicator, Element, ReduceOp, Result};
use phalanx_tensor::host::{HostSliceMut, with_host_slice_mut};
use phalanx_tensor::{Array, HookResult, ProcessGroup};

/// The ranks of a communicator. The ops of a model run in the same order on every rank, so that their operations meet between
/// the same reductions of gradients everywhere, also where both go over one communicator.
#[derive(Debug, Clone)]
pub struct RankGroup(Communicator);

impl RankGroup {
    /// The group of a communicator's ranks.
    pub fn of(communicator: &Communicator) -> Arc<dyn ProcessGroup> {
        Arc::new(Self(communicator.clone()))
    }

    /// Whether parts of `lens` are those that the communicator cuts `len` elements into.
    fn is_even(&self, lens: &[usize], len: usize) -> bool {
        phalanx_tensor::group::even_lens(len, self.0.world_size()) == lens
    }

    /// Refuses parts that are not one for each rank, or not all of the numbers.
    fn check(&self, operation: &'static str, lens: &[usize], len: usize) -> Result<()> {
        let (ranks, sum) = (self.0.world_size(), lens.iter().sum::<usize>());
        match lens.len() == ranks && sum == len {
            true => Ok(()),
            false => {
                let problem =
                    format!("parts {lens:?} of {ranks} ranks are {sum} numbers, and there are {len}");
                Err(CommError::Argument { operation, problem })
            }
        }
    }

    fn gather<T: Element>(&self, values: &mut [T], lens: &[usize]) -> Result<()> {
        self.check("all-gather", lens, values.len())?;
        if self.is_even(lens, values.len()) {
            return self.0.all_gather_in_place(values);
        }
        let rank = self.0.rank();
        let start: usize = lens[..rank].iter().sum();
        let parts = self.0.all_gatherv(&values[start..start + lens[rank]])?;
        let mut rest = values;
        for (from, (part, len)) in parts.iter().zip(lens).enumerate() {
            if part.len() != *len {
                let problem = format!("rank {from} gives {} numbers; its part is {len}", part.len());
                return Err(CommError::Argument { operation: "all-gather", problem });
            }
            let (to, others) = rest.split_at_mut(*len);
            to.copy_from_slice(part);
            rest = others;
        }
        Ok(())
    }

    fn scatter<T: Element>(&self, values: &mut [T], lens: &[usize]) -> Result<()> {
        self.check("reduce-scatter", lens, values.len())?;
        match self.is_even(lens, values.len()) {
            true => self.0.reduce_scatter_in_place(values, ReduceOp::Sum),
            // Parts that ranks are not cut into by themselves: the sum of everything has them all.
            false => self.0.all_reduce(values, ReduceOp::Sum),
        }
    }
}

impl ProcessGroup for RankGroup {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&self, values: &Array) -> HookResult {
        Ok(with_host_slice_mut(values.host("all_reduce")?, |values| match values {
            HostSliceMut::F32(values) => self.0.all_reduce(values, ReduceOp::Sum),
            HostSliceMut::F64(values) => self.0.all_reduce(values, ReduceOp::Sum),
        })??)
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        Ok(with_host_slice_mut(values.host("all_gather")?, |values| match values {
            HostSliceMut::F32(values) => self.gather(values, lens),
            HostSliceMut::F64(values) => self.gather(values, lens),
        })??)
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        Ok(with_host_slice_mut(values.host("reduce_scatter")?, |values| match values {
            HostSliceMut::F32(values) => self.scatter(values, lens),
            HostSliceMut::F64(values) => self.scatter(values, lens),
        })??)
    }
}
