//! A step of logical ranks: each runs forward and backward by itself on its part of the batch.

use std::ops::Range;

use phalanx_sharding::{ParallelStrategy, VirtualRankGroup, VirtualRankTurns, VirtualRanks};
use phalanx_tensor::{Session, Tape};

use super::Run;
use crate::engine::data::{MicroBatch, StepSamples};
use crate::engine::distributed::{BatchGroups, Network};
use crate::engine::training::{Measure, Step};
use crate::engine::{TrainError, precision};

impl Run<'_> {
    /// Which logical ranks are of which rank, if there are any.
    pub(super) fn placed(&self) -> Result<Option<VirtualRanks>, TrainError> {
        let placed = |logical| Ok(VirtualRanks::new(logical, self.distributed.data_size())?);
        self.config.logical_ranks().map(placed).transpose()
    }

    /// The logical ranks of this rank, if there are any.
    pub(super) fn own_shards(&self) -> Result<Option<Range<usize>>, TrainError> {
        Ok(self.placed()?.map(|placed| placed.of(self.distributed.rank())))
    }

    /// Runs a phase forward and backward for each logical rank of this rank: of its loss and of each measure a part for each of them,
    /// while the gradients that they have led to are summed.
    pub(super) fn shard_gradients(
        &self,
        placed: VirtualRanks,
        phase: usize,
        share: &StepSamples,
    ) -> Result<Vec<Vec<Measure>>, TrainError> {
        let (state, distributed) = (&self.state, &self.distributed);
        let training = &*state.training;
        let phases = training.phases();
        let mut key = self.key.stream("train");
        if phases.len() > 1 {
            key = key.stream(&phases[phase].name);
        }
        let numbers = 1 + phases[phase].measures.len();
        let own = placed.of(distributed.rank());
        let each = share.micro_batches.len() / own.len();
        // Logical ranks gather parameters block by block as many times as each rank has some, which must be equally many.
        let some_have_none =
            share.micro_batches.iter().any(|micro_batch| micro_batch.ranks < placed.shards());
        let uneven = !placed.is_even() || some_have_none;
        let gathered = || state.networks().filter(|network| uneven && network.gathers());
        gathered().try_for_each(Network::unshard)?;
        // A rank whose last logical rank has no samples knows only at the end that a gradient is whole, and until then meets the others
        // where they share statistics: those would wait for its gradients there.
        let together = !some_have_none && (!uneven || state.updated(phase).count() == 1);
        let strategies: Vec<std::sync::Arc<dyn ParallelStrategy>> = state.strategies(phase)?;
        let turns = VirtualRankTurns::new(own.clone(), strategies);
        // All ranks ask for the groups of all micro-batches, also those that have no samples of some.
        let groups = state.updated(phase).next().map(Network::batch_groups).unwrap_or_default();
        let of_micro_batch = |micro_batch: &MicroBatch| of_first(&groups, placed, micro_batch.ranks);
        let ranks = share.micro_batches[..each].iter().map(of_micro_batch).collect::<Result<Vec<_>, _>>()?;
        let (listener, factor) = (state.listener(), state.loss_factor(phase)?);
        let (constants, number) = (state.constants(phase), state.step);
        let (context, place, config) = (&self.context, &self.place, self.config);
        let shared = self.key.stream("train").step(number);
        // What a device has computed by then is read when all are through, and perhaps later.
        let run = |shard: usize| -> Result<Vec<Vec<Measure>>, TrainError> {
            let mut sums: Vec<Vec<Measure>> = (0..numbers).map(|_| Vec::with_capacity(each)).collect();
            let micro_batches = &share.micro_batches[(shard - own.start) * each..][..each];
            for (index, (MicroBatch { batch, offset, ranks: members }, ranks)) in
                micro_batches.iter().zip(&ranks).enumerate()
            {
                if batch.is_empty() {
                    continue;
                }
                let group = (placed.shards() > 1).then(|| {
                    VirtualRankGroup::of(index, (placed, *members), (shard, turns.clone()), ranks.clone())
                });
                let session = Session {
                    sample_offset: *offset,
                    listener: listener.clone(),
                    batch_group: group,
                    moves_statistics: shard == own.start,
                    recompute: precision::recompute(config),
                    precision: config.train.precision,
                    device: place.clone(),
                    frozen: constants.clone(),
                    ..Session::training(context.clone(), key.step(number))
                };
                turns.micro_batch(shard, index + 1 < each || !together)?;
                let tape = Tape::recording(session);
                let step = Step::new(&tape, batch, share.global_weight, number, shared);
                let forward = tracing::trace_span!(target: "phalanx_trace::compute", "forward");
                let loss = forward.in_scope(|| training.loss(phase, &step))?;
                let measured = std::iter::once(Measure::of(&loss.value)?).chain(loss.measures);
                sums.iter_mut().zip(measured).for_each(|(sum, part)| sum.push(part));
                let backward = tracing::trace_span!(target: "phalanx_trace::compute", "backward");
                backward.in_scope(|| tape.backward_scaled(&loss.value, factor.clone()))?;
            }
            Ok(sums)
        };
        let of_shards = turns.run(run)?;
        gathered().try_for_each(Network::reshard)?;
        let mut of_numbers: Vec<Vec<Measure>> = (0..numbers).map(|_| Vec::with_capacity(own.len())).collect();
        for sums in of_shards {
            of_numbers
                .iter_mut()
                .zip(sums)
                .for_each(|(of_number, parts)| of_number.push(Measure::sum(parts)));
        }
        Ok(of_numbers)
    }
}

/// The ranks that have some of the first `members` logical ranks; none if that is one.
fn of_first(
    groups: &BatchGroups,
    placed: VirtualRanks,
    members: usize,
) -> Result<Option<std::sync::Arc<dyn phalanx_tensor::ProcessGroup>>, TrainError> {
    match placed.ranks_of_first(members) {
        0 => Ok(None),
        ranks => Ok(groups.first(ranks)?.filter(|_| ranks > 1)),
    }
}
