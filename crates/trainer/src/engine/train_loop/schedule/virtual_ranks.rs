//! Virtual ranks: each runs forward and backward by itself on its part of the batch, so that results do not depend on the number of
//! ranks (EasyScale, Li et al. 2023).

use std::ops::Range;
use std::sync::Arc;

use phalanx_sharding::{StepGuard, VirtualRankGroup, VirtualRankTurns, VirtualRanks};
use phalanx_tensor::{ProcessGroup, Session};

use super::{MicroBatchPass, MicroBatchSchedule, PhasePass, no_parts};
use crate::engine::TrainError;
use crate::engine::data::MicroBatch;
use crate::engine::distributed::Network;
use crate::engine::training::Measure;

/// Runs the virtual ranks of this rank in turns.
#[derive(Debug)]
pub(super) struct VirtualRankSchedule {
    placed: VirtualRanks,
    own: Range<usize>,
}

impl VirtualRankSchedule {
    /// Creates the schedule of data rank `rank`.
    pub(super) fn new(placed: VirtualRanks, rank: usize) -> Self {
        Self { placed, own: placed.of(rank) }
    }

    /// The ranks that hold some of the first `members` virtual ranks; none if that is one rank.
    fn ranks_of_first(
        &self,
        pass: &PhasePass<'_>,
        members: usize,
    ) -> Result<Option<Arc<dyn ProcessGroup>>, TrainError> {
        let groups = pass.state.updated(pass.phase).next().map(Network::batch_groups).unwrap_or_default();
        match self.placed.ranks_of_first(members) {
            0 => Ok(None),
            ranks => Ok(groups.first(ranks)?.filter(|_| ranks > 1)),
        }
    }
}

impl MicroBatchSchedule for VirtualRankSchedule {
    fn run(&self, pass: &PhasePass<'_>, _: &mut [StepGuard<'_>]) -> Result<Vec<Vec<Measure>>, TrainError> {
        let (placed, state, micro_batches) = (self.placed, pass.state, &pass.samples.micro_batches);
        let each = micro_batches.len() / self.own.len();
        // Virtual ranks gather parameters block by block once for each of a rank's, so all ranks must hold equally many.
        let some_are_empty = micro_batches.iter().any(|micro_batch| micro_batch.ranks < placed.shards());
        let is_uneven = !placed.is_even() || some_are_empty;
        let gathered = pass.gather(is_uneven)?;
        // A rank whose last virtual rank has no samples learns only at the end that a gradient is complete. Until then it meets the
        // others in shared statistics, and they would wait for its gradients there.
        let overlaps = !some_are_empty && (!is_uneven || state.updated(pass.phase).count() == 1);
        let turns = VirtualRankTurns::new(self.own.clone(), state.strategies(pass.phase)?);
        // All ranks ask for the groups of all micro-batches, also those without samples of some.
        let group_of = |micro_batch: &MicroBatch| self.ranks_of_first(pass, micro_batch.ranks);
        let groups = micro_batches[..each].iter().map(group_of).collect::<Result<Vec<_>, _>>()?;
        let runner = VirtualRankRunner {
            schedule: self,
            turns: &turns,
            groups,
            overlaps,
            passes: pass.micro_batches()?,
        };
        let numbers = pass.numbers();
        // Results of a device are read after all virtual ranks have run, or later.
        let by_virtual_rank = turns.run(|virtual_rank| {
            let first = (virtual_rank - self.own.start) * each;
            runner.run(virtual_rank, &micro_batches[first..][..each], numbers)
        })?;
        gathered.release()?;
        let mut parts = no_parts(numbers);
        for of_rank in by_virtual_rank {
            parts.iter_mut().zip(of_rank).for_each(|(of_number, more)| of_number.push(Measure::sum(more)));
        }
        Ok(parts)
    }

    /// Returns the numbers of each virtual rank, one after the other.
    fn sums(&self, parts: Vec<Vec<Measure>>) -> Result<Vec<f64>, TrainError> {
        let mut by_virtual_rank = vec![Vec::with_capacity(parts.len()); self.own.len()];
        for of_number in parts {
            for (of_rank, part) in by_virtual_rank.iter_mut().zip(of_number) {
                of_rank.push(part.take()?);
            }
        }
        Ok(by_virtual_rank.concat())
    }

    fn virtual_ranks(&self) -> Range<usize> {
        self.own.clone()
    }
}

/// Runs the micro-batches of virtual ranks.
struct VirtualRankRunner<'a> {
    schedule: &'a VirtualRankSchedule,
    turns: &'a Arc<VirtualRankTurns>,
    /// The ranks with samples, of each micro-batch.
    groups: Vec<Option<Arc<dyn ProcessGroup>>>,
    /// True if gradients are reduced while backward runs.
    overlaps: bool,
    passes: MicroBatchPass<'a>,
}

impl VirtualRankRunner<'_> {
    /// Runs a virtual rank on its micro-batches. Returns the parts of each number.
    fn run(
        &self,
        virtual_rank: usize,
        micro_batches: &[MicroBatch],
        numbers: usize,
    ) -> Result<Vec<Vec<Measure>>, TrainError> {
        let (placed, own) = (self.schedule.placed, &self.schedule.own);
        let mut parts = no_parts(numbers);
        for (index, (micro_batch, ranks)) in micro_batches.iter().zip(&self.groups).enumerate() {
            if micro_batch.batch.is_empty() {
                continue;
            }
            let group = (placed.shards() > 1).then(|| {
                let (members, turn) = ((placed, micro_batch.ranks), (virtual_rank, self.turns.clone()));
                VirtualRankGroup::of(index, members, turn, ranks.clone())
            });
            let session = Session {
                moves_statistics: virtual_rank == own.start,
                ..self.passes.session(micro_batch, group)
            };
            self.turns.micro_batch(virtual_rank, index + 1 < micro_batches.len() || !self.overlaps)?;
            self.passes.run(micro_batch, session, &mut parts)?;
        }
        Ok(parts)
    }
}
