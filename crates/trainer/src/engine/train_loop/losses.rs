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
    /// Gives this rank's sums of a step to rank 0.
    pub(super) fn tell(&mut self, distributed: &Distributed, own: Vec<f64>) -> Result<(), TrainError> {
        if distributed.rank() > 0 {
            let bytes = own.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>();
            return distributed.job().post(NAME, &bytes);
        }
        self.0.entry(0).or_default().push_back(own);
        Ok(())
    }

    /// On rank 0, the sums over all ranks of the oldest step that was not brought together yet: waits for ranks that have not told
    /// theirs, or returns nothing if one has not.
    ///
    /// Added in the order of ranks, so that they are the same numbers in every run.
    pub(super) fn bring_together(
        &mut self,
        distributed: &Distributed,
        wait: bool,
    ) -> Result<Option<Vec<f64>>, TrainError> {
        if distributed.rank() > 0 {
            return Ok(None);
        }
        let ranks = 0..distributed.size();
        while ranks.clone().any(|rank| self.0.get(&rank).is_none_or(VecDeque::is_empty)) {
            if !self.hear(distributed.job(), wait)? {
                return Ok(None);
            }
        }
        let mut all = ranks.filter_map(|rank| self.0.get_mut(&rank)?.pop_front());
        let mut sums = all.next().unwrap_or_default();
        for told in all {
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

    /// Takes what a rank has to tell, and waits for it if so wanted; whether there was anything.
    fn hear(&mut self, job: &Job, wait: bool) -> Result<bool, TrainError> {
        let notice = if wait { job.wait(NAME)? } else { job.poll(NAME)? };
        let Some(notice) = notice else { return Ok(false) };
        let numbers = notice.payload.as_chunks().0.iter().copied().map(f64::from_le_bytes);
        self.0.entry(notice.from).or_default().push_back(numbers.collect());
        Ok(true)
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
                let sums = (0..5).map(|step| {
                    losses.tell(&distributed, of_step(f64::from(step))).expect("told");
                    losses.bring_together(&distributed, true).expect("told")
                });
                sums.collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect::<Vec<_>>();
        let told: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let of_all = (0..5).map(|step| Some(vec![f64::from(3 * step + 3), 0.75]));
        assert_eq!(told[0], of_all.collect::<Vec<_>>());
        assert!(told[1..].iter().flatten().all(Option::is_none));
    }

    #[test]
    fn rank_0_need_not_wait_for_who_is_behind() {
        let world: Vec<_> = threads(2).expect("threads").into_iter().map(Distributed::among).collect();
        let [first, second] = &world[..] else { panic!("two ranks") };
        let (first, second) = (first.as_ref().expect("a rank"), second.as_ref().expect("a rank"));
        let mut losses = Losses::default();
        let mut other = Losses::default();
        for step in 0..3 {
            losses.tell(first, vec![f64::from(step)]).expect("told");
            assert_eq!(
                losses.bring_together(first, false).expect("sound"),
                None,
                "the other has told nothing"
            );
        }
        (0..2).for_each(|step| other.tell(second, vec![f64::from(10 * step)]).expect("told"));
        assert_eq!(losses.bring_together(first, false).expect("sound"), Some(vec![0.0]));
        assert_eq!(losses.bring_together(first, false).expect("sound"), Some(vec![11.0]));
        assert_eq!(losses.bring_together(first, false).expect("sound"), None);
    }
}
