//! Gradients: reduced while backward still runs, from the last bucket to the first.

use std::collections::VecDeque;

use phalanx_collectives::{Handle, ReduceOp};
use phalanx_tensor::FlatStorage;

use super::DataParallel;
use super::coding::Coded;
use super::logical::Summing;
use super::shards::ShardSlots;
use crate::Result;
use crate::beside::Pending;
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
    /// Buckets whose sums are on their way to the host, the oldest first.
    leaving: VecDeque<usize>,
    /// Whether more micro-batches come before anything is reduced.
    pub(super) accumulating: bool,
    /// The gradients of logical ranks, if there are any.
    pub(super) shards: Option<ShardSlots>,
}

impl Reductions {
    pub(super) fn new(buckets: usize, shards: Option<ShardSlots>) -> Self {
        let (running, crossing, leaving) = (VecDeque::new(), Vec::new(), VecDeque::new());
        let ready = vec![false; buckets];
        Self { ready, started: 0, running, crossing, leaving, accumulating: false, shards }
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
    message: Message,
    wire_bytes: u64,
    /// Whether it is between groups of ranks.
    crosses: bool,
}

/// What is summed.
#[derive(Debug)]
enum Message {
    /// The gradients in place.
    InPlace(Handle<InPlace>),
    /// The gradients, of which this rank gets its shard.
    Scattered(Handle<(InPlace, InPlace)>),
    /// What a codec makes of them.
    Coded(Pending<Coded>),
    /// What logical ranks have come to, along the tree over them.
    Logical(Summing),
    /// Nothing travels: there is nobody to add to.
    Alone,
}

impl Reduction {
    pub(super) fn is_done(&self) -> bool {
        match &self.message {
            Message::InPlace(handle) => handle.is_done(),
            Message::Scattered(handle) => handle.is_done(),
            Message::Coded(pending) => pending.is_done(),
            Message::Logical(summing) => summing.is_done(),
            Message::Alone => true,
        }
    }
}

impl DataParallel {
    /// Whether logical ranks' gradients lie on a device. Which bucket is finished before which is started then follows from their
    /// order alone: ranks have different numbers of logical ranks, and all must give their devices the same operations.
    pub(super) fn sums_on_device(&self) -> bool {
        self.logical.is_some() && self.params.iter().any(|param| !param.device().is_host())
    }

    /// Starts the reduction of the next bucket in order.
    pub(super) fn start(&self, step: &mut Reductions) -> Result<()> {
        while self.sums_on_device() && step.running.len() > self.options.prefetch.max(1) {
            let Some(oldest) = step.running.pop_front() else { break };
            self.finish(step, oldest)?;
        }
        let (bucket, layout) = (self.order[step.started], self.strategy.layout);
        let param = &self.params[bucket];
        // What is issued inside of it is this bucket's.
        let _ready = tracing::trace_span!(
            target: "phalanx_trace::gradients",
            "gradients ready",
            bucket = bucket as u64,
            block = param.blocks().next(),
        )
        .entered();
        let (full, shard) = param.begin_reduce(layout.scatters())?;
        if let Some((logical, shards)) = self.logical.as_ref().zip(step.shards.as_mut()) {
            let sums = shards.close(bucket, &full, logical.spares())?;
            let message = Message::Logical(logical.start(&self.labels[bucket], sums, shard.clone())?);
            let sum = shard.unwrap_or(full);
            step.running.push_back(Reduction { bucket, sum, message, wire_bytes: 0, crosses: false });
            step.started += 1;
            return Ok(());
        }
        let shards = self.shards.about(&self.labels[bucket]);
        let (message, wire_bytes) = match (&shard, &self.coding) {
            (_, Some(coding)) => {
                let pending = coding.start(bucket, full.clone(), shard.clone());
                (Message::Coded(pending), coding.message_bytes(bucket))
            }
            // Memory of a device, which cannot travel, need not where there is but one rank.
            (_, None) if self.comm.world_size() == 1 && !full.array().is_host() => {
                match &shard {
                    Some(shard) => shard.copy_from(&full.narrow(param.owned())?)?,
                    None if layout.gradients == Layout::Sharded => param.free_unreduced_grads()?,
                    None => {}
                }
                (Message::Alone, 0)
            }
            (Some(shard), None) => {
                let (sent, room) = (self.rounding.sent(param, &full)?, self.rounding.room(param, shard)?);
                if self.rounding.rounds() {
                    param.free_unreduced_grads()?;
                }
                let bytes = self.rounding.bytes(&sent);
                let buffers = (InPlace::new(sent)?, InPlace::new(room)?);
                let handle = shards.reduce_scatter_into_async(buffers.0, buffers.1, ReduceOp::Sum);
                (Message::Scattered(handle), bytes)
            }
            (None, None) => {
                let sent = self.rounding.sent(param, &full)?;
                let bytes = self.rounding.bytes(&sent);
                let buffer = InPlace::new(sent)?;
                let handle = match layout.gradients {
                    Layout::Replicated => shards.all_reduce_async(buffer, ReduceOp::Sum),
                    Layout::Leader => shards.reduce_async(buffer, ReduceOp::Sum, LEADER),
                    Layout::Sharded => {
                        param.free_unreduced_grads()?;
                        shards.reduce_scatter_in_place_async(buffer, ReduceOp::Sum)
                    }
                };
                (Message::InPlace(handle), bytes)
            }
        };
        let sum = shard.unwrap_or(full);
        step.running.push_back(Reduction { bucket, sum, message, wire_bytes, crosses: false });
        step.started += 1;
        Ok(())
    }

    /// Waits for a reduction, and keeps of the summed gradients what the strategy says. A shard goes on to the other groups
    /// first, if there are any; by a codec it has been there.
    pub(super) fn finish(&self, step: &mut Reductions, reduction: Reduction) -> Result<()> {
        let Reduction { bucket, sum, message, crosses, .. } = reduction;
        let param = &self.params[bucket];
        match (message, &self.coding) {
            (Message::Scattered(handle), _) => self.rounding.received(handle.wait()?.1.flat(), &sum)?,
            (Message::InPlace(handle), _) => self.rounding.received(handle.wait()?.flat(), &sum)?,
            (Message::Coded(pending), Some(coding)) => coding.wait(pending)?,
            (Message::Coded(pending), None) => drop(pending.wait()?),
            (Message::Logical(summing), _) => {
                if let Some(logical) = &self.logical {
                    logical.wait(bucket, summing)?;
                }
            }
            (Message::Alone, _) => {}
        }
        let layout = self.strategy.layout;
        let summed_between = self.coding.is_some() || self.logical.is_some();
        let between = self.replicas.as_ref().filter(|_| layout.scatters() && !crosses && !summed_between);
        let Some(replicas) = between else {
            param.end_reduce(layout.keeps_gradients(self.shards.rank()))?;
            return self.bring_home(step, bucket);
        };
        param.free_unreduced_grads()?;
        let sent = self.rounding.sent(param, &sum)?;
        let wire_bytes = self.rounding.bytes(&sent);
        let message = Message::InPlace(replicas.all_reduce_async(InPlace::new(sent)?, ReduceOp::Sum));
        step.crossing.push(Reduction { bucket, sum, message, wire_bytes, crosses: true });
        Ok(())
    }

    /// Lets summed gradients go to the host, if that keeps the parameters. A few buckets' may be on their way; the thread that trains
    /// waits for those before, so that the device does not keep them all.
    fn bring_home(&self, step: &mut Reductions, bucket: usize) -> Result<()> {
        if !self.params[bucket].is_offloaded() {
            return Ok(());
        }
        self.params[bucket].begin_grad_offload()?;
        step.leaving.push_back(bucket);
        while step.leaving.len() > self.options.prefetch.max(1) {
            let Some(oldest) = step.leaving.pop_front() else { break };
            self.params[oldest].finish_grad_offload()?;
        }
        Ok(())
    }
}
