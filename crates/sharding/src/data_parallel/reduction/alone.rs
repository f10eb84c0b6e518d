//! Gradients of the only rank, in the memory of a device.

use std::sync::Arc;

use super::{BucketGradients, BucketReduction, RunningReduction};
use crate::Result;
use crate::strategy::Partition;

/// Sends nothing. The memory of a device needs no transport where there is one rank.
#[derive(Debug)]
pub(in super::super) struct Alone {
    gradients: Partition,
}

impl Alone {
    /// Makes the reduction of gradients that are kept as `gradients` says.
    pub(in super::super) fn new(gradients: Partition) -> Self {
        Self { gradients }
    }
}

impl BucketReduction for Alone {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        match &gradients.shard {
            Some(shard) => shard.copy_from(&gradients.full.narrow(gradients.param.owned())?)?,
            None if self.gradients == Partition::Sharded => gradients.param.free_unreduced_grads()?,
            None => {}
        }
        Ok(Box::new(Finished))
    }
}

/// A reduction that was over when it started.
#[derive(Debug)]
struct Finished;

impl RunningReduction for Finished {
    fn is_done(&self) -> bool {
        true
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
