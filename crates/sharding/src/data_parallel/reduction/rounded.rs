//! Gradients in the memory of a device, rounded by its computing stream.

use std::sync::Arc;

use candle_core::DType;
use phalanx_codecs::buffer::InPlace;
use phalanx_codecs::{CodecKind, CodecScope, CodecWhen, GradCodec};
use phalanx_collectives::{Communicator, ReduceOp};
use phalanx_tensor::{FlatStorage, ParamBucket};

use super::{BucketGradients, BucketReduction, RunningOperation, RunningReduction};
use crate::options::Options;
use crate::strategy::{Partition, ROOT};
use crate::{Result, ShardingError};

/// Sums rounded copies of gradients. No thread encodes them; the device rounds them where it computes.
#[derive(Debug)]
pub(in super::super) struct RoundedReduction {
    dtype: DType,
    shards: Communicator,
    /// The part of the sum that each rank keeps.
    gradients: Partition,
}

impl RoundedReduction {
    /// Makes the sum of gradients as `dtype` over `shards`, the ranks that share what is sharded.
    pub(in super::super) fn new(dtype: DType, shards: Communicator, gradients: Partition) -> Self {
        Self { dtype, shards, gradients }
    }

    /// Returns the element type that a device's computing stream rounds gradients to under these options. `None` without a codec, or
    /// where the device's codecs do it ([`GradCodec::works_on_devices`]): where the codec is measured, works between groups only, or
    /// does more than rounding.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if the codec works on CPUs only.
    pub(in super::super) fn dtype_of(options: &Options) -> Result<Option<DType>> {
        let Some(codec) = options.codec.as_deref() else { return Ok(None) };
        let simple = options.codec_when == CodecWhen::Always && options.codec_scope == CodecScope::All;
        let rounded = codec.rounds_to().filter(|_| simple);
        if rounded.is_none() && !codec.works_on_devices() {
            let there = CodecKind::ALL.iter().filter(|kind| kind.works_on_devices());
            let names = there.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            let problem = format!("encodes on CPUs; on GPUs there is {names}");
            return Err(ShardingError::codec(GradCodec::name(codec), problem));
        }
        Ok(rounded)
    }

    /// A rounded copy of `values`, to be sent.
    fn copy(&self, param: &ParamBucket, values: &FlatStorage) -> Result<FlatStorage> {
        let rounded = param.wire_buffer(values.len(), self.dtype)?;
        rounded.copy_from(values)?;
        Ok(rounded)
    }
}

impl BucketReduction for RoundedReduction {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        let BucketGradients { param, shard, .. } = gradients;
        let shards = self.shards.about(gradients.label);
        let sent = self.copy(param, &gradients.full)?;
        let (wire_bytes, converted) = (sent.bytes() as u64, Some(gradients.sum().clone()));
        if let Some(shard) = shard {
            let arriving = param.wire_buffer(shard.len(), self.dtype)?;
            param.free_unreduced_grads()?;
            let (sent, arriving) = (InPlace::new(sent)?, InPlace::new(arriving)?);
            let handle = shards.reduce_scatter_into_async(sent, arriving, ReduceOp::Sum);
            return Ok(Box::new(RunningOperation { handle, converted, wire_bytes }));
        }
        let sent = InPlace::new(sent)?;
        let handle = match self.gradients {
            Partition::Replicated => shards.all_reduce_async(sent, ReduceOp::Sum),
            Partition::Root => shards.reduce_async(sent, ReduceOp::Sum, ROOT),
            Partition::Sharded => {
                param.free_unreduced_grads()?;
                shards.reduce_scatter_in_place_async(sent, ReduceOp::Sum)
            }
        };
        Ok(Box::new(RunningOperation { handle, converted, wire_bytes }))
    }

    fn start_between(
        &self,
        param: &ParamBucket,
        sum: &FlatStorage,
        replicas: &Communicator,
    ) -> Result<Option<Box<dyn RunningReduction>>> {
        param.free_unreduced_grads()?;
        let sent = self.copy(param, sum)?;
        let wire_bytes = sent.bytes() as u64;
        let handle = replicas.all_reduce_async(InPlace::new(sent)?, ReduceOp::Sum);
        Ok(Some(Box::new(RunningOperation { handle, converted: Some(sum.clone()), wire_bytes })))
    }
}
