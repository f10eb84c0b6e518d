//! Sums the gradients of virtual ranks over the ranks, along the tree over virtual ranks.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator, Handle};
use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{FlatStorage, ParamBucket};

use super::slots::{ShardSlots, SpareBuffers, Sums};
use super::{BucketGradients, BucketReduction, RunningReduction};
use crate::background::{Pending, Worker};
use crate::strategy::{Partition, ROOT};
use crate::virtual_ranks::VirtualRanks;
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::InPlace;
use phalanx_codecs::traffic::chunk;

/// Elements that are added up at a time, so that they stay in the cache.
const BLOCK: usize = 1 << 12;

/// Sums gradients along the tree over logical ranks.
#[derive(Debug)]
pub(in super::super) struct VirtualSum {
    sum: TreeSum,
    worker: Worker,
    /// The time that the training thread waited.
    waited: Mutex<Duration>,
    spares: SpareBuffers,
    /// The gradients of this rank's virtual ranks, in a step.
    slots: Mutex<Option<ShardSlots>>,
}

/// The thread or device that sums a bucket.
#[derive(Debug)]
enum Summing {
    /// By the background thread, which returns its scratch buffers.
    Background(Pending<Vec<FlatStorage>>),
    /// By a device, which has started the exchange and not yet the additions.
    OnDevice(Box<(TreeSum, PendingSums)>),
}

/// The sums of a bucket that are exchanged between ranks.
#[derive(Debug)]
struct PendingSums {
    sums: Sums,
    full: FlatStorage,
    shard: Option<FlatStorage>,
    /// The elements that this rank sums.
    own: Range<usize>,
    exchange: Option<Exchange>,
}

/// The exchange of all ranks' subtree sums over some elements, which one rank adds up.
#[derive(Debug)]
struct Exchange {
    coming: Vec<Handle<(InPlace, InPlace)>>,
    /// A buffer with the same number of elements for each subtree.
    room: FlatStorage,
    len: usize,
    additions: Vec<[usize; 2]>,
}

/// State that both threads share.
#[derive(Debug)]
struct TreeSum {
    placed: VirtualRanks,
    /// The part of the sums that each rank keeps.
    gradients: Partition,
    /// All ranks, for gradients alone.
    comm: Communicator,
    /// The number of ranks that share what is sharded.
    shards: usize,
    replicas: Option<Communicator>,
}

impl VirtualSum {
    /// `comm` and `replicas` are for gradients alone, so that nothing else comes between them; `shards` is how many ranks share what
    /// is sharded.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(in super::super) fn new(
        placed: VirtualRanks,
        gradients: Partition,
        (comm, shards, replicas): (Communicator, usize, Option<Communicator>),
        (buckets, background): (usize, bool),
    ) -> Result<Self> {
        // The background thread waits for messages of host gradients; a device's operations are enqueued at once.
        let comm = comm.blocking();
        Ok(Self {
            sum: TreeSum { placed, gradients, comm, shards, replicas },
            worker: Worker::start("logical", background)?,
            waited: Mutex::default(),
            spares: SpareBuffers::new(buckets),
            slots: Mutex::default(),
        })
    }

    /// Begins a step with no gradients.
    pub(in super::super) fn begin_step(&self, buckets: usize) {
        let own = self.sum.placed.of(self.sum.comm.rank());
        *self.slots() = Some(ShardSlots::new(own, self.sum.placed.tree(), buckets));
    }

    /// Ends a step, and drops the gradients that were not summed.
    pub(in super::super) fn end_step(&self) {
        *self.slots() = None;
    }

    /// Selects virtual rank `at` of this rank: the gradients of `params`, whose sums have not started, are its own.
    ///
    /// # Errors
    /// Errors of the gradients' memory.
    pub(in super::super) fn turn<'p>(
        &self,
        at: usize,
        more: Option<bool>,
        params: impl Iterator<Item = &'p ParamBucket>,
    ) -> Result<()> {
        let spares = &self.spares;
        self.slots().as_mut().map_or(Ok(()), |slots| slots.turn(at, more, params, spares))
    }

    /// Adds the gradients that the current virtual rank has of a bucket. True if they are the last of this rank.
    ///
    /// # Errors
    /// Errors of the gradients' memory.
    pub(in super::super) fn ready(&self, param: &ParamBucket) -> Result<bool> {
        self.slots().as_mut().map_or(Ok(false), |slots| slots.ready(param, &self.spares))
    }

    /// Sums the remaining buckets when all virtual ranks are done, with zeros where they have no gradients.
    ///
    /// # Errors
    /// Errors of the gradients' memory.
    pub(in super::super) fn settle<'p>(
        &self,
        params: impl Iterator<Item = &'p ParamBucket> + Clone,
    ) -> Result<()> {
        self.slots().as_mut().map_or(Ok(()), |slots| slots.settle(params, &self.spares))
    }

    /// Returns the bytes of gradients other than the active virtual rank's.
    pub(in super::super) fn bytes(&self) -> u64 {
        self.spares.bytes() + self.slots().as_ref().map_or(0, ShardSlots::bytes)
    }

    fn slots(&self) -> MutexGuard<'_, Option<ShardSlots>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a bucket.
    ///
    /// # Errors
    /// Errors of communication.
    fn wait(&self, bucket: usize, summing: Summing) -> Result<()> {
        let start = Instant::now();
        let spare = match summing {
            Summing::Background(pending) => pending.wait()?,
            Summing::OnDevice(begun) => begun.0.finish(begun.1)?,
        };
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        spare.into_iter().for_each(|spare| self.spares.keep(bucket, spare));
        Ok(())
    }
}

impl BucketReduction for VirtualSum {
    fn start(self: Arc<Self>, gradients: &BucketGradients<'_>) -> Result<Box<dyn RunningReduction>> {
        let bucket = gradients.index;
        let none = || ShardingError::Step("virtual ranks are summed outside of a step");
        let sums = self.slots().as_mut().ok_or_else(none)?.close(bucket, &gradients.full, &self.spares)?;
        let sum = self.sum.about(gradients.label);
        let shard = gradients.shard.clone();
        let summing = if sums.iter().any(|(_, sum)| !sum.array().is_host()) {
            let begun = sum.begin(sums, shard)?;
            Summing::OnDevice(Box::new((sum, begun)))
        } else {
            Summing::Background(self.worker.run(move || sum.finish(sum.begin(sums, shard)?)))
        };
        Ok(Box::new(Running { of: self, bucket, summing }))
    }

    fn stats(&self) -> CommStats {
        let all = self.sum.replicas.iter().map(Communicator::stats);
        let all = all.fold(self.sum.comm.stats(), |sum, part| sum + part);
        // The sums run in the background; exposed is the wait of the thread that trains.
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..all }
    }
}

/// A bucket whose gradients are being summed.
#[derive(Debug)]
struct Running {
    of: Arc<VirtualSum>,
    bucket: usize,
    summing: Summing,
}

impl RunningReduction for Running {
    fn is_done(&self) -> bool {
        match &self.summing {
            Summing::Background(pending) => pending.is_done(),
            Summing::OnDevice(_) => false,
        }
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.of.wait(self.bucket, self.summing)
    }
}

impl TreeSum {
    /// Labels the operations in the flight recorder.
    fn about(&self, label: &Arc<str>) -> Self {
        let replicas = self.replicas.as_ref().map(|replicas| replicas.about(label));
        Self { comm: self.comm.about(label), replicas, ..*self }
    }

    /// The elements of a bucket whose sum falls to a rank to compute.
    fn falls_to(&self, rank: usize, len: usize) -> Range<usize> {
        match self.gradients {
            Partition::Root if rank == ROOT => 0..len,
            Partition::Root => 0..0,
            Partition::Replicated | Partition::Sharded => {
                // Groups are adjacent and share the sum of the elements that all of them hold.
                let own = chunk(len, self.shards, rank % self.shards);
                let part = chunk(own.len(), self.comm.world_size() / self.shards, rank / self.shards);
                own.start + part.start..own.start + part.end
            }
        }
    }

    /// Starts to exchange the sums.
    fn begin(&self, sums: Sums, shard: Option<FlatStorage>) -> Result<PendingSums> {
        let (_, full) = sums.last().ok_or(ShardingError::Step("there are no gradients to sum"))?;
        let full = full.clone();
        let own = self.falls_to(self.comm.rank(), full.len());
        let exchange = match self.comm.world_size() {
            1 => None,
            _ => Some(self.exchange(&sums, &full, &own)?),
        };
        Ok(PendingSums { sums, full, shard, own, exchange })
    }

    /// Sums the received parts, stores the result, and returns the free buffers.
    fn finish(&self, begun: PendingSums) -> Result<Vec<FlatStorage>> {
        let PendingSums { mut sums, full, shard, own, exchange } = begun;
        let (rank, alone) = (self.comm.rank(), exchange.is_none());
        let summed = exchange.map_or_else(|| Ok(full.clone()), Exchange::end)?;
        match (shard, self.gradients) {
            (Some(shard), _) => {
                let at = own.start - chunk(full.len(), self.shards, rank % self.shards).start;
                shard.narrow(at..at + own.len())?.copy_from(&summed)?;
                if let Some(replicas) = &self.replicas {
                    replicas.all_gather_in_place(&mut InPlace::new(shard)?)?;
                }
            }
            (None, _) if alone => {}
            (None, gradients) => {
                if !own.is_empty() {
                    full.narrow(own)?.copy_from(&summed)?;
                }
                if gradients == Partition::Replicated {
                    self.comm.all_gather_in_place(&mut InPlace::new(full)?)?;
                }
            }
        }
        sums.pop();
        Ok(sums.into_iter().map(|(_, sum)| sum).collect())
    }

    /// Brings the sums of all ranks' subtrees over elements `own` here.
    fn exchange(&self, sums: &Sums, full: &FlatStorage, own: &Range<usize>) -> Result<Exchange> {
        let ranks = self.comm.world_size();
        let tree = self.placed.tree();
        let nodes: Vec<Vec<Range<usize>>> = (0..ranks).map(|rank| tree.nodes(self.placed.of(rank))).collect();
        let before = |rank: usize| nodes[..rank].iter().map(Vec::len).sum::<usize>();
        let (count, len) = (before(ranks), own.len());
        let room = full.unwritten_like((count * len).max(1))?;
        let mut coming = Vec::new();
        for round in 0..nodes.iter().map(Vec::len).max().unwrap_or(0) {
            let sent = sums.get(round);
            let out = |rank| if sent.is_some() { self.falls_to(rank, full.len()) } else { 0..0 };
            let inn = |rank: usize| match round < nodes[rank].len() {
                true => (before(rank) + round) * len..(before(rank) + round + 1) * len,
                false => 0..0,
            };
            let (out, inn) = ((0..ranks).map(out).collect(), (0..ranks).map(inn).collect());
            let sent = InPlace::new(sent.map_or(full, |(_, sum)| sum).clone())?;
            coming.push(self.comm.all_to_allv_into_async((sent, out), (InPlace::new(room.clone())?, inn)));
        }
        Ok(Exchange { coming, room, len, additions: tree.additions(&nodes.concat()) })
    }
}

impl Exchange {
    /// Waits for the received parts and sums them.
    fn end(self) -> Result<FlatStorage> {
        let Self { coming, room, len, additions } = self;
        for handle in coming {
            handle.wait()?;
        }
        if room.array().is_host() {
            room.with_slice_mut(|slice| match slice {
                HostSliceMut::F32(values) => add_up(values, len, &additions),
                HostSliceMut::F64(values) => add_up(values, len, &additions),
            })?;
        } else {
            let part = |at: usize| room.narrow(at * len..(at + 1) * len);
            additions.iter().try_for_each(|[left, right]| part(*left)?.add(&part(*right)?))?;
        }
        Ok(room.narrow(0..len)?)
    }
}

/// Adds parts of `len` numbers to others, block by block in this order.
fn add_up<T: Copy + std::ops::AddAssign>(values: &mut [T], len: usize, additions: &[[usize; 2]]) {
    for start in (0..len).step_by(BLOCK) {
        let block = BLOCK.min(len - start);
        for [left, right] in additions {
            let (head, tail) = values.split_at_mut(right * len);
            let left = &mut head[left * len + start..][..block];
            left.iter_mut().zip(&tail[start..][..block]).for_each(|(left, right)| *left += *right);
        }
    }
}
