//! Gradients of logical ranks, summed between the ranks along the tree over them.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator};
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

/// What both threads know.
#[derive(Debug)]
struct TreeSum {
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
    /// owns, or into the last of these.
    pub(super) fn start(
        &self,
        label: &Arc<str>,
        sums: Sums,
        shard: Option<FlatStorage>,
    ) -> Pending<Vec<FlatStorage>> {
        let sum = self.sum.about(label);
        self.worker.run(move || sum.run(sums, shard.as_ref()))
    }

    /// Waits for a bucket.
    ///
    /// # Errors
    /// Those of communication.
    pub(super) fn wait(&self, bucket: usize, pending: Pending<Vec<FlatStorage>>) -> Result<()> {
        let start = Instant::now();
        let spare = pending.wait()?;
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

    /// Sums, and returns the memory that is not needed any more.
    fn run(&self, mut sums: Sums, shard: Option<&FlatStorage>) -> Result<Vec<FlatStorage>> {
        let (rank, ranks) = (self.comm.rank(), self.comm.world_size());
        let (_, full) = sums.last().ok_or(ShardingError::Step("there are no gradients to sum"))?;
        let full = full.clone();
        let own = self.falls_to(rank, full.len());
        let summed = match ranks {
            1 => full.clone(),
            _ => self.exchange(&sums, &full, &own)?,
        };
        match (shard, self.gradients) {
            (Some(shard), _) => {
                let at = own.start - chunk(full.len(), self.shards, rank % self.shards).start;
                shard.narrow(at..at + own.len())?.copy_from(&summed)?;
                if let Some(replicas) = &self.replicas {
                    replicas.all_gather_in_place(&mut InPlace::new(shard.clone())?)?;
                }
            }
            (None, _) if ranks == 1 => {}
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

    /// Brings the sums of all ranks' subtrees over elements `own` here, and adds them up.
    fn exchange(&self, sums: &Sums, full: &FlatStorage, own: &Range<usize>) -> Result<FlatStorage> {
        let ranks = self.comm.world_size();
        let tree = self.placed.tree();
        let nodes: Vec<Vec<Range<usize>>> = (0..ranks).map(|rank| tree.nodes(self.placed.of(rank))).collect();
        let before = |rank: usize| nodes[..rank].iter().map(Vec::len).sum::<usize>();
        let (count, len) = (before(ranks), own.len());
        let room = full.room_beside((count * len).max(1))?;
        for round in 0..nodes.iter().map(Vec::len).max().unwrap_or(0) {
            let sent = sums.get(round);
            let out = |rank| if sent.is_some() { self.falls_to(rank, full.len()) } else { 0..0 };
            let inn = |rank: usize| match round < nodes[rank].len() {
                true => (before(rank) + round) * len..(before(rank) + round + 1) * len,
                false => 0..0,
            };
            let (out, inn): (Vec<_>, Vec<_>) = (0..ranks).map(|rank| (out(rank), inn(rank))).unzip();
            let sent = sent.map_or(full, |(_, sum)| sum).clone();
            let to = &mut InPlace::new(room.clone())?;
            self.comm.all_to_allv_into((&mut InPlace::new(sent)?, &out), (to, &inn))?;
        }
        let additions = tree.additions(&nodes.concat());
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
