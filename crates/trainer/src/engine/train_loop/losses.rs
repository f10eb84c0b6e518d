//! Losses and measures of a step, brought together on rank 0, which alone writes them down.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, Job};
use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;

/// What notices of them are called.
const NAME: &str = "losses";

/// What ranks have told of their losses, by rank, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<usize, VecDeque<Vec<f64>>>);

impl Losses {
    /// Gives this rank's sums of a step to rank 0, and returns there those of all ranks, once all have told theirs. Ranks tell
    /// them after backward, so rank 0 never waits for computing that its own next step would not wait for as well.
    ///
    /// Added in the order of ranks, so that they are the same numbers in every run.
    pub(super) fn bring_together(
        &mut self,
        distributed: &Distributed,
        own: Vec<f64>,
    ) -> Result<Option<Vec<f64>>, TrainError> {
        let job = distributed.job();
        if distributed.rank() > 0 {
            job.post(NAME, &own.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>())?;
            return Ok(None);
        }
        let others = 1..distributed.size();
        while others.clone().any(|rank| self.0.get(&rank).is_none_or(VecDeque::is_empty)) {
            self.hear(job)?;
        }
        let mut sums = own;
        for told in others.filter_map(|rank| self.0.get_mut(&rank)?.pop_front()) {
            if told.len() != sums.len() {
                let (told, own) = (told.len(), sums.len());
                return Err(TrainError::Setup(format!(
                    "a rank measures {told} numbers a step, rank 0 {own}"
                )));
            }
            sums.iter_mut().zip(told).for_each(|(sum, told)| *sum += told);
        }
        Ok(Some(sums))
    }

    /// Waits for what a rank has to tell.
    fn hear(&mut self, job: &Job) -> Result<(), TrainError> {
        if let Some(notice) = job.wait(NAME)? {
            let numbers = notice.payload.as_chunks().0.iter().copied().map(f64::from_le_bytes);
            self.0.entry(notice.from).or_default().push_back(numbers.collect());
        }
        Ok(())
    }
}

/// The reports of a step's phases, from the sums of all of them one after the other.
pub(super) fn reports(phases: &[&Phase], sums: &[f64]) -> Vec<PhaseReport> {
    let mut rest = sums.iter().copied();
    let report = |phase: &&Phase| PhaseReport {
        name: phase.name.clone(),
        loss: rest.next().unwrap_or(f64::NAN),
        measures: phase.measures.iter().cloned().zip(rest.by_ref()).collect(),
    };
    phases.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    #[test]
    fn rank_0_adds_up_what_ranks_tell_however_far_ahead_they_are() {
        let ranks = threads(3).expect("threads").into_iter().map(|communicator| {
            std::thread::spawn(move || {
                let distributed = Distributed::among(communicator).expect("threads have a control plane");
                let mut losses = Losses::default();
                let rank = distributed.rank() as f64;
                let of_step = |step: f64| vec![step + rank, 0.25 * rank];
                let sums = (0..5).map(|step| losses.bring_together(&distributed, of_step(f64::from(step))));
                sums.map(|sums| sums.expect("told")).collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect::<Vec<_>>();
        let told: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let of_all = (0..5).map(|step| Some(vec![f64::from(3 * step + 3), 0.75]));
        assert_eq!(told[0], of_all.collect::<Vec<_>>());
        assert!(told[1..].iter().flatten().all(Option::is_none));
    }
}
