//! Values of parameters: at the start, and after they were loaded.

use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{Key, ParamState};

use super::DataParallel;
use crate::Result;
use crate::strategy::Layout;

impl DataParallel {
    /// Gives this rank its elements of every bucket. Values that there are none of yet are drawn: where parameters leave memory
    /// between uses, those of this rank's elements only.
    pub(super) fn fill(&self, key: Key) -> Result<()> {
        let (layout, of) = (self.strategy.layout, (self.shards.rank(), self.shards.world_size()));
        for param in &self.params {
            param.set_owned(layout.owned(param.len(), of))?;
            if param.trainable() && layout.gradients == Layout::Sharded {
                // What stays is allocated before what comes and goes, so that it does not end up between.
                param.reserve_grad_shard()?;
            }
            match (param.state(), layout.leaves_memory(param, of.1)) {
                (ParamState::Absent, true) => param.fill_shard(param.initial_values(key, param.owned())?)?,
                (ParamState::Absent, false) => param.fill(param.initial_values(key, 0..param.len())?)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Makes all ranks' parameters that are in memory equal to rank 0's, and keeps of them what the strategy says.
    pub(super) fn broadcast_params(&self) -> Result<()> {
        let mut state = self.state();
        (0..self.params.len()).try_for_each(|at| self.receive(&mut state, at))?;
        for param in &self.params {
            let Some(full) = param.values() else { continue };
            full.with_slice_mut(|slice| match slice {
                HostSliceMut::F32(values) => self.comm.broadcast(values, 0),
                HostSliceMut::F64(values) => self.comm.broadcast(values, 0),
            })??;
            if self.strategy.layout.leaves_memory(param, self.shards.world_size()) {
                param.shard()?;
            }
        }
        state.gathered = super::Gathered::default();
        Ok(())
    }
}
