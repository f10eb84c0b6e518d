//! Gradients: reduced while backward still runs, from the last bucket to the first.

use std::collections::VecDeque;
use std::ops::Range;

use phalanx_collectives::{FlatBuffer, Handle, ReduceOp};
use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{FlatStorage, TensorError};

use super::DataParallel;
use crate::Result;
use crate::buffer::InPlace;
use crate::strategy::{LEADER, Layout};

/// How far the reductions of a step are.
#[derive(Debug)]
pub(super) struct Reductions {
    /// By bucket: whether its gradients are complete.
    pub(super) ready: Vec<bool>,
    /// How many buckets, in the order of reduction, have started.
    pub(super) started: usize,
    /// Started and not finished.
    pub(super) running: VecDeque<Reduction>,
    /// Shards on their way between groups.
    pub(super) crossing: Vec<Reduction>,
    /// Whether more micro-batches come before anything is reduced.
    pub(super) accumulating: bool,
}

impl Reductions {
    pub(super) fn new(buckets: usize) -> Self {
        let (running, crossing) = (VecDeque::new(), Vec::new());
        Self { ready: vec![false; buckets], started: 0, running, crossing, accumulating: false }
    }

    /// Bytes of messages on their way that are not the gradients themselves.
    pub(super) fn wire_bytes(&self) -> u64 {
        self.running.iter().chain(&self.crossing).map(|reduction| reduction.wire_bytes).sum()
    }
}

/// The sum of a bucket's gradients on its way.
#[derive(Debug)]
pub(super) struct Reduction {
    bucket: usize,
    /// Where the sum goes: the gradients themselves, or the room for this rank's shard.
    sum: FlatStorage,
    /// Which elements of the message these are.
    range: Range<usize>,
    message: Message,
    wire_bytes: u64,
    /// Whether it is between groups of ranks.
    crosses: bool,
}

/// What is summed.
#[derive(Debug)]
enum Message {
    /// The gradients in place, or what the codec has made of them.
    InPlace(Handle<Box<dyn FlatBuffer>>),
    /// The gradients, of which this rank gets its shard.
    Scattered(Handle<(InPlace, InPlace)>),
    /// Nothing travels: there is nobody to add to.
    Alone,
}

impl Reduction {
    pub(super) fn is_done(&self) -> bool {
        match &self.message {
            Message::InPlace(handle) => handle.is_done(),
            Message::Scattered(handle) => handle.is_done(),
            Message::Alone => true,
        }
    }
}

impl DataParallel {
    /// Starts the reduction of the next bucket in order.
    pub(super) fn start(&self, step: &mut Reductions) -> Result<()> {
        let (bucket, layout) = (self.order[step.started], self.strategy.layout);
        let param = &self.params[bucket];
        let (full, shard) = param.begin_reduce(layout.scatters())?;
        let range = if shard.is_some() { param.owned() } else { 0..param.len() };
        let (message, wire_bytes) = match (&shard, &self.options.codec) {
            // Memory of a device, which cannot travel, need not where there is but one rank.
            (_, None) if self.comm.world_size() == 1 && !full.array().is_host() => {
                match &shard {
                    Some(shard) => shard.copy_from(&full.narrow(range.clone())?)?,
                    None if layout.gradients == Layout::Sharded => param.free_unreduced_grads()?,
                    None => {}
                }
                (Message::Alone, 0)
            }
            (Some(shard), None) => {
                let buffers = (InPlace::new(full.clone())?, InPlace::new(shard.clone())?);
                let handle = self.shards.reduce_scatter_into_async(buffers.0, buffers.1, ReduceOp::Sum);
                (Message::Scattered(handle), 0)
            }
            _ => {
                let (buffer, bytes) = self.travelling(bucket, &full)?;
                let handle = match layout.gradients {
                    Layout::Replicated => self.shards.all_reduce_async(buffer, ReduceOp::Sum),
                    Layout::Leader => self.shards.reduce_async(buffer, ReduceOp::Sum, LEADER),
                    Layout::Sharded => {
                        param.free_unreduced_grads()?;
                        self.shards.reduce_scatter_in_place_async(buffer, ReduceOp::Sum)
                    }
                };
                (Message::InPlace(handle), bytes)
            }
        };
        let sum = shard.unwrap_or(full);
        step.running.push_back(Reduction { bucket, sum, range, message, wire_bytes, crosses: false });
        step.started += 1;
        Ok(())
    }

    /// Waits for a reduction, and keeps of the summed gradients what the strategy says. A shard goes on to the other groups
    /// first, if there are any.
    pub(super) fn finish(&self, step: &mut Reductions, reduction: Reduction) -> Result<()> {
        let Reduction { bucket, sum, range, message, crosses, .. } = reduction;
        let param = &self.params[bucket];
        match (message, &self.options.codec) {
            (Message::Alone, _) => {}
            (Message::Scattered(handle), _) => drop(handle.wait()?),
            (Message::InPlace(handle), None) => drop(handle.wait()?),
            (Message::InPlace(handle), Some(codec)) => {
                let mut message = handle.wait()?;
                with_singles(&sum, |gradients| codec.decode(&mut *message, range, gradients))??;
            }
        }
        let layout = self.strategy.layout;
        let Some(replicas) = self.replicas.as_ref().filter(|_| layout.scatters() && !crosses) else {
            return Ok(param.end_reduce(layout.keeps_gradients(self.shards.rank()))?);
        };
        param.free_unreduced_grads()?;
        let (buffer, wire_bytes) = self.travelling(self.params.len() + bucket, &sum)?;
        let message = Message::InPlace(replicas.all_reduce_async(buffer, ReduceOp::Sum));
        let range = 0..sum.len();
        step.crossing.push(Reduction { bucket, sum, range, message, wire_bytes, crosses: true });
        Ok(())
    }

    /// What travels in the place of gradients, and the bytes that it takes beside them: what the codec makes of them for `slot`,
    /// or they themselves.
    fn travelling(&self, slot: usize, gradients: &FlatStorage) -> Result<(Box<dyn FlatBuffer>, u64)> {
        let Some(codec) = &self.options.codec else {
            return Ok((Box::new(InPlace::new(gradients.clone())?), 0));
        };
        let message = with_singles(gradients, |gradients| codec.encode(slot, gradients))??;
        Ok((message, codec.bytes(gradients.len() as u64).wire))
    }
}

/// Opens flat memory of f32.
fn with_singles<R>(flat: &FlatStorage, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let opened = flat.with_slice_mut(|slice| match slice {
        HostSliceMut::F32(values) => Some(f(values)),
        HostSliceMut::F64(_) => None,
    })?;
    Ok(opened
        .ok_or_else(|| TensorError::Unsupported { op: "codec", what: "gradients other than f32".into() })?)
}
