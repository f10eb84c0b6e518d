//! Gradients of logical ranks, summed between the ranks along the tree over them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator, Handle};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::host::HostSliceMut;

use super::shards::{ShardSlots, Spares, Sums};
use crate::beside::{Pending, Worker};
use crate::buffer::InPlace;
use crate::logical::LogicalRanks;
use crate::strategy::{LEADER, Layout};
use crate::traffic::chunk;
use crate::{Result, ShardingError};

/// Elements that are added up at a time, so that they stay in the cache.
const BLOCK: usize = 1 << 12;

/// Sums gradients along the tree over logical ranks.
#[derive(Debug)]
pub(super) struct Logical {
    sum: TreeSum,
    worker: Worker,
    /// How long the thread that trains has waited.
    waited: Mutex<Duration>,
    spares: Spares,
}

/// A bucket whose gradients are being summed.
#[derive(Debug)]
pub(super) enum Summing {
    /// By the thread beside the one that trains; what comes back is memory that is not needed any more.
    Beside(Pending<Vec<FlatStorage>>),
    /// By a device, which has been given what travels and not yet what is added up.
    OnDevice(Box<(TreeSum, Begun)>),
}

impl Summing {
    pub(super) fn is_done(&self) -> bool {
        match self {
            Self::Beside(pending) => pending.is_done(),
            Self::OnDevice(_) => false,
        }
    }
}

/// Sums that are on their way between ranks.
#[derive(Debug)]
pub(super) struct Begun {
    sums: Sums,
    full: FlatStorage,
    shard: Option<FlatStorage>,
    /// The elements that this rank adds up.
    own: Range<usize>,
    exchange: Option<Exchange>,
}

/// The sums of all ranks' subtrees over some elements, on their way to the rank that adds them up.
#[derive(Debug)]
struct Exchange {
    coming: Vec<Handle<(InPlace, InPlace)>>,
    /// Of each subtree as many elements.
    room: FlatStorage,
    len: usize,
    additions: Vec<[usize; 2]>,
}

/// What both threads know.
#[derive(Debug)]
pub(super) struct TreeSum {
    placed: LogicalRanks,
    /// Who has which sums after all.
    gradients: Layout,
    /// All ranks, for gradients alone.
    comm: Communicator,
    /// How many ranks share what is sharded; those with the same shards in other groups, if there are groups.
    shards: usize,
    replicas: Option<Communicator>,
}

impl Logical {
    /// `comm` and `replicas` are for gradients alone, so that nothing else comes between them; `shards` is how many ranks share what
    /// is sharded.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(super) fn new(
        placed: LogicalRanks,
        gradients: Layout,
        (comm, shards, replicas): (Communicator, usize, Option<Communicator>),
        (buckets, beside): (usize, bool),
    ) -> Result<Self> {
        // Of the host's gradients the thread beside the one that trains waits for what travels; a device's are issued at once anyway.
        let comm = comm.blocking();
        Ok(Self {
            sum: TreeSum { placed, gradients, comm, shards, replicas },
            worker: Worker::start("logical", beside)?,
            waited: Mutex::default(),
            spares: Spares::new(buckets),
        })
    }

    /// For the gradients of a step.
    pub(super) fn slots(&self, buckets: usize) -> ShardSlots {
        let own = self.sum.placed.of(self.sum.comm.rank());
        ShardSlots::new(own, self.sum.placed.tree(), buckets)
    }

    /// Sums a bucket's gradients, of which `sums` are those of this rank's whole subtrees: into `shard`, the elements that this rank
    /// owns, or into the last of these. Gradients of a device travel beside what it computes until they are waited for.
    ///
    /// # Errors
    /// Those of communication, of gradients of a device.
    pub(super) fn start(&self, label: &Arc<str>, sums: Sums, shard: Option<FlatStorage>) -> Result<Summing> {
        let sum = self.sum.about(label);
        if sums.iter().any(|(_, sum)| !sum.array().is_host()) {
            let begun = sum.begin(sums, shard)?;
            return Ok(Summing::OnDevice(Box::new((sum, begun))));
        }
        Ok(Summing::Beside(self.worker.run(move || sum.finish(sum.begin(sums, shard)?))))
    }

    /// Waits for a bucket.
    ///
    /// # Errors
    /// Those of communication.
    pub(super) fn wait(&self, bucket: usize, summing: Summing) -> Result<()> {
        let start = Instant::now();
        let spare = match summing {
            Summing::Beside(pending) => pending.wait()?,
            Summing::OnDevice(begun) => begun.0.finish(begun.1)?,
        };
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        spare.into_iter().for_each(|spare| self.spares.keep(bucket, spare));
        Ok(())
    }

    /// Memory that is left over from earlier steps.
    pub(super) fn spares(&self) -> &Spares {
        &self.spares
    }

    /// What communication has cost; exposed is what the thread that trains has waited.
    pub(super) fn stats(&self) -> CommStats {
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        let all = self.sum.replicas.iter().map(Communicator::stats);
        let all = all.fold(self.sum.comm.stats(), |sum, part| sum + part);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..all }
    }
}

impl TreeSum {
    /// With operations that the flight recorder says this of.
    fn about(&self, label: &Arc<str>) -> Self {
        let replicas = self.replicas.as_ref().map(|replicas| replicas.about(label));
        Self { comm: self.comm.about(label), replicas, ..*self }
    }

    /// The elements of a bucket whose sum falls to a rank to compute.
    fn falls_to(&self, rank: usize, len: usize) -> Range<usize> {
        match self.gradients {
            Layout::Leader if rank == LEADER => 0..len,
            Layout::Leader => 0..0,
            Layout::Replicated | Layout::Sharded => {
                // Groups follow each other, and share the work on what all of them hold.
                let own = chunk(len, self.shards, rank % self.shards);
                let part = chunk(own.len(), self.comm.world_size() / self.shards, rank / self.shards);
                own.start + part.start..own.start + part.end
            }
        }
    }

    /// Sends the sums on their way.
    fn begin(&self, sums: Sums, shard: Option<FlatStorage>) -> Result<Begun> {
        let (_, full) = sums.last().ok_or(ShardingError::Step("there are no gradients to sum"))?;
        let full = full.clone();
        let own = self.falls_to(self.comm.rank(), full.len());
        let exchange = match self.comm.world_size() {
            1 => None,
            _ => Some(self.exchange(&sums, &full, &own)?),
        };
        Ok(Begun { sums, full, shard, own, exchange })
    }

    /// Adds up what has come, brings it where it belongs, and returns the memory that is not needed any more.
    fn finish(&self, begun: Begun) -> Result<Vec<FlatStorage>> {
        let Begun { mut sums, full, shard, own, exchange } = begun;
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
                if gradients == Layout::Replicated {
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
    /// Waits for what comes, and adds it up.
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
