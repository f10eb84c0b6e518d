//! Gradient accumulation: one micro-batch after the other, reduced with the last.

use std::ops::Range;

use phalanx_sharding::StepGuard;

use super::{MicroBatchSchedule, PhasePass, no_parts};
use crate::engine::TrainError;
use crate::engine::distributed::Network;
use crate::engine::training::Measure;

/// Runs one micro-batch after the other and accumulates their gradients.
#[derive(Debug)]
pub(super) struct GradientAccumulation;

impl MicroBatchSchedule for GradientAccumulation {
    fn run(
        &self,
        pass: &PhasePass<'_>,
        guards: &mut [StepGuard<'_>],
    ) -> Result<Vec<Vec<Measure>>, TrainError> {
        let (state, micro_batches) = (pass.state, &pass.samples.micro_batches);
        let mut parts = no_parts(pass.numbers());
        let last = micro_batches.len().saturating_sub(1);
        // In the last batch of an epoch, some ranks may have no samples in a micro-batch. The ranks then cannot gather
        // parameters block by block.
        let ranks = pass.distributed.data_size();
        let is_uneven = micro_batches.iter().any(|micro_batch| micro_batch.ranks < ranks);
        let gathered = pass.gather(is_uneven)?;
        // Ranks without samples do not know the order in which others reduce several networks, so the reduction comes
        // last.
        let overlaps = !is_uneven || state.updated(pass.phase).count() == 1;
        let passes = pass.micro_batches()?;
        for (index, micro_batch) in micro_batches.iter().enumerate() {
            if micro_batch.ranks == 0 {
                continue;
            }
            // Only ranks with samples take part in normalisation and contrastive losses. All ranks create the group.
            let groups = state.updated(pass.phase).next().map(Network::batch_groups).unwrap_or_default();
            let batch_group = groups.first(micro_batch.ranks)?;
            if micro_batch.batch.is_empty() {
                continue;
            }
            let session = passes.session(micro_batch, batch_group);
            // Gradients are reduced with the last micro-batch, when they are complete. It is the same on all ranks,
            // also on ranks without samples in it.
            guards.iter_mut().for_each(|guard| guard.micro_batch(index != last || !overlaps));
            passes.run(micro_batch, session, &mut parts)?;
        }
        gathered.release()?;
        Ok(parts)
    }

    fn sums(&self, parts: Vec<Vec<Measure>>) -> Result<Vec<f64>, TrainError> {
        let sum = |parts: Vec<Measure>| parts.into_iter().map(Measure::take).sum::<Result<f64, _>>();
        parts.into_iter().map(sum).collect()
    }

    fn virtual_ranks(&self) -> Range<usize> {
        0..0
    }
}
