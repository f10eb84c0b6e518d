//! Gradients: reduced while backward still runs, from the last bucket to the first.

use std::collections::VecDeque;
use std::sync::Arc;

use phalanx_collectives::{Communicator, FlatBuffer, Handle, ReduceOp};
use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{FlatParam, FlatStorage, TensorError};

use super::DataParallel;
use crate::Result;
use crate::buffer::{InPlace, Wire};
use crate::codec::GradCodec;
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
    pub(super) bucket: usize,
    /// Where the sum goes: the gradients themselves, or the room for this rank's shard.
    pub(super) sum: FlatStorage,
    pub(super) message: Message,
    wire_bytes: u64,
}

/// What is summed.
#[derive(Debug)]
pub(super) enum Message {
    /// The gradients, in place.
    Whole(Handle<InPlace>),
    /// The gradients, of which this rank gets its shard.
    Scattered(Handle<(InPlace, InPlace)>),
    /// What the codec has made of them.
    Encoded(Handle<Wire>, Arc<dyn GradCodec>),
}

impl Message {
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Whole(handle) => handle.is_done(),
            Self::Scattered(handle) => handle.is_done(),
            Self::Encoded(handle, _) => handle.is_done(),
        }
    }
}

impl DataParallel {
    /// Starts the reduction of the next bucket in order.
    pub(super) fn start(&self, step: &mut Reductions) -> Result<()> {
        let bucket = self.order[step.started];
        let param = &self.params[bucket];
        let scatters = self.strategy.layout.gradients == Layout::Sharded;
        let (full, shard) = param.begin_reduce(scatters)?;
        let reduction = match (&self.codec, shard) {
            (Some(codec), shard) => {
                let (wire, wire_bytes) = encoded(&**codec, bucket, &full)?;
                if shard.is_some() {
                    param.free_unreduced_grads()?;
                }
                let message = Message::Encoded(self.summed(wire), codec.clone());
                Reduction { bucket, sum: shard.unwrap_or(full), message, wire_bytes }
            }
            (None, Some(shard)) => {
                let buffers = (InPlace(full), InPlace(shard.clone()));
                let handle = self.shards.reduce_scatter_into_async(buffers.0, buffers.1, ReduceOp::Sum);
                Reduction { bucket, sum: shard, message: Message::Scattered(handle), wire_bytes: 0 }
            }
            (None, None) => {
                let message = Message::Whole(self.summed(InPlace(full.clone())));
                Reduction { bucket, sum: full, message, wire_bytes: 0 }
            }
        };
        step.running.push_back(reduction);
        step.started += 1;
        Ok(())
    }

    /// Sums buffers of whole buckets, so far as this rank gets the sum.
    fn summed<B: FlatBuffer>(&self, buffer: B) -> Handle<B> {
        match self.strategy.layout.gradients {
            Layout::Replicated => self.shards.all_reduce_async(buffer, ReduceOp::Sum),
            Layout::Sharded => self.shards.reduce_scatter_in_place_async(buffer, ReduceOp::Sum),
            Layout::Leader => self.shards.reduce_async(buffer, ReduceOp::Sum, LEADER),
        }
    }

    /// Waits for the oldest reduction. A shard goes on to the other groups, if there are any.
    pub(super) fn finish_oldest(&self, step: &mut Reductions) -> Result<()> {
        let Some(reduction) = step.running.pop_front() else { return Ok(()) };
        let (bucket, param) = (reduction.bucket, &self.params[reduction.bucket]);
        let scatters = self.strategy.layout.gradients == Layout::Sharded;
        let sum = self.arrived(reduction, if scatters { param.owned() } else { 0..param.len() })?;
        let Some(replicas) = self.replicas.as_ref().filter(|_| scatters) else { return self.reduced(param) };
        param.free_unreduced_grads()?;
        step.crossing.push(self.cross(replicas, bucket, sum)?);
        Ok(())
    }

    /// Sums this rank's shard over the groups.
    fn cross(&self, replicas: &Communicator, bucket: usize, sum: FlatStorage) -> Result<Reduction> {
        let (message, wire_bytes) = match &self.codec {
            Some(codec) => {
                let (wire, bytes) = encoded(&**codec, self.params.len() + bucket, &sum)?;
                (Message::Encoded(replicas.all_reduce_async(wire, ReduceOp::Sum), codec.clone()), bytes)
            }
            None => (Message::Whole(replicas.all_reduce_async(InPlace(sum.clone()), ReduceOp::Sum)), 0),
        };
        Ok(Reduction { bucket, sum, message, wire_bytes })
    }

    /// Waits for a reduction; of an encoded sum elements `range` are decoded.
    pub(super) fn arrived(&self, reduction: Reduction, range: std::ops::Range<usize>) -> Result<FlatStorage> {
        let Reduction { sum, message, .. } = reduction;
        match message {
            Message::Whole(handle) => drop(handle.wait()?),
            Message::Scattered(handle) => drop(handle.wait()?),
            Message::Encoded(handle, codec) => {
                let mut wire = handle.wait()?;
                let decode = |gradients: &mut [f32]| codec.decode(&mut *wire.0, range, gradients);
                with_singles(&sum, decode)??;
            }
        }
        Ok(sum)
    }

    /// Keeps of a bucket's summed gradients what the strategy says.
    pub(super) fn reduced(&self, param: &FlatParam) -> Result<()> {
        Ok(param.end_reduce(match self.strategy.layout.gradients {
            Layout::Replicated => true,
            Layout::Sharded => false,
            Layout::Leader => self.shards.rank() == LEADER,
        })?)
    }

    /// The codec with the number of elements of everything that it encodes in a step.
    pub(super) fn codec_elements(&self) -> impl Iterator<Item = (&dyn GradCodec, u64)> {
        let trainable = self.codec.iter().flat_map(|codec| self.order.iter().map(move |at| (&**codec, *at)));
        trainable.flat_map(|(codec, at)| {
            let crossing = self.replicas.as_ref().map(|_| self.params[at].owned().len());
            let lens = [Some(self.params[at].len()), crossing].into_iter().flatten();
            lens.map(move |len| (codec, len as u64))
        })
    }
}

/// What the codec makes of gradients, and how many bytes that takes.
fn encoded(codec: &dyn GradCodec, slot: usize, gradients: &FlatStorage) -> Result<(Wire, u64)> {
    let message = with_singles(gradients, |gradients| codec.encode(slot, gradients))??;
    Ok((Wire(message), codec.bytes(gradients.len() as u64).wire))
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
