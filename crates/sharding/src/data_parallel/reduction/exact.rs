//! Gradients that travel as they are.

use std::sync::Arc;

use phalanx_codecs::buffer::InPlace;
use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_tensor::{FlatStorage, ParamBucket};

use super::{BucketGradients, BucketReduction, RunningOperation, RunningReduction};
use crate::Result;
use crate::strategy::{Partition, ROOT};

/// Sums gradients by the collectives of a communicator.
#[derive(Debug)]
pub(in super::super) struct ExactReduction {
    shards: Communicator,
    /// The part of the sum that each rank keeps.
    gradients: Partition,
}

impl ExactReduction {
    /// Makes the sum over `shards`, the ranks that share what is sharded.
    pub(in super::super) fn new(shards: Communicator, gradients: Partition) -> Self {
        Self { shards, gradients }
    }
}

impl BucketReduction for ExactReduction {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        let shards = self.shards.about(gradients.label);
        let full = InPlace::new(gradients.full.clone())?;
        if let Some(shard) = &gradients.shard {
            let handle = shards.reduce_scatter_into_async(full, InPlace::new(shard.clone())?, ReduceOp::Sum);
            return Ok(Box::new(RunningOperation { handle, converted: None, wire_bytes: 0 }));
        }
        let handle = match self.gradients {
            Partition::Replicated => shards.all_reduce_async(full, ReduceOp::Sum),
            Partition::Root => shards.reduce_async(full, ReduceOp::Sum, ROOT),
            Partition::Sharded => {
                gradients.param.free_unreduced_grads()?;
                shards.reduce_scatter_in_place_async(full, ReduceOp::Sum)
            }
        };
        Ok(Box::new(RunningOperation { handle, converted: None, wire_bytes: 0 }))
    }

    fn start_between(
        &self,
        param: &ParamBucket,
        sum: &FlatStorage,
        replicas: &Communicator,
    ) -> Result<Option<Box<dyn RunningReduction>>> {
        param.free_unreduced_grads()?;
        let handle = replicas.all_reduce_async(InPlace::new(sum.clone())?, ReduceOp::Sum);
        Ok(Some(Box::new(RunningOperation { handle, converted: None, wire_bytes: 0 })))
    }
}
