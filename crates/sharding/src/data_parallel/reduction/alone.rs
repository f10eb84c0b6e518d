//! The reduction of a single rank, in the memory of a device.

use std::sync::Arc;

use super::{BucketGradients, BucketReduction, RunningReduction};
use crate::Result;
use crate::strategy::Partition;

/// A reduction over one rank, which sends nothing.
#[derive(Debug)]
pub(in super::super) struct SingleRankReduction {
    gradients: Partition,
}

impl SingleRankReduction {
    /// Makes the reduction for this partition of gradients.
    pub(in super::super) fn new(gradients: Partition) -> Self {
        Self { gradients }
    }
}

impl BucketReduction for SingleRankReduction {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        match &gradients.shard {
            Some(shard) => shard.copy_from(&gradients.full.narrow(gradients.param.owned())?)?,
            None if self.gradients == Partition::Sharded => gradients.param.free_unreduced_grads()?,
            None => {}
        }
        Ok(Box::new(CompletedReduction))
    }
}

/// A reduction that was complete when it started.
#[derive(Debug)]
struct CompletedReduction;

impl RunningReduction for CompletedReduction {
    fn is_done(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
