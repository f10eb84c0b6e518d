//! Losses and measures of a step, brought together on rank 0, which alone writes them down.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, Job};
use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;

/// What notices of them are called.
const NAME: &str = "losses";

/// What a rank tells of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    /// Seconds of training when it had done the step, by its own clock.
    pub(super) seconds: f64,
    /// Its parts of the losses and measures of the step's phases, one after the other.
    pub(super) sums: Vec<f64>,
}

impl Told {
    /// The sums over all ranks, and the seconds of the last. Added in the order of ranks, so that they are the same numbers in every
    /// run.
    pub(super) fn whole(of_ranks: &[Self]) -> Result<Self, TrainError> {
        let Some((first, others)) = of_ranks.split_first() else {
            return Err(TrainError::Setup("no rank has told its losses".to_owned()));
        };
        let mut whole = first.clone();
        for told in others {
            if told.sums.len() != whole.sums.len() {
                let (told, own) = (told.sums.len(), whole.sums.len());
                return Err(TrainError::Setup(format!(
                    "a rank measures {told} numbers a step, rank 0 {own}"
                )));
            }
            whole.seconds = whole.seconds.max(told.seconds);
            whole.sums.iter_mut().zip(&told.sums).for_each(|(sum, told)| *sum += told);
        }
        Ok(whole)
    }
}

/// What ranks have told of their losses, by rank, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Losses(BTreeMap<usize, VecDeque<Told>>);

impl Losses {
    /// Gives this rank's sums of a step to rank 0.
    pub(super) fn tell(&mut self, distributed: &Distributed, own: Told) -> Result<(), TrainError> {
        if distributed.rank() > 0 {
            let numbers = std::iter::once(own.seconds).chain(own.sums);
            let bytes = numbers.flat_map(f64::to_le_bytes).collect::<Vec<_>>();
            return distributed.job().post(NAME, &bytes);
        }
        self.0.entry(0).or_default().push_back(own);
        Ok(())
    }

    /// On rank 0, what all ranks have told of the oldest step that was not brought together yet, in the order of ranks: waits for
    /// ranks that have not told theirs, or returns nothing if one has not.
    pub(super) fn bring_together(
        &mut self,
        distributed: &Distributed,
        wait: bool,
    ) -> Result<Option<Vec<Told>>, TrainError> {
        if distributed.rank() > 0 {
            return Ok(None);
        }
        let ranks = 0..distributed.size();
        while ranks.clone().any(|rank| self.0.get(&rank).is_none_or(VecDeque::is_empty)) {
            if !self.hear(distributed.job(), wait)? {
                return Ok(None);
            }
        }
        Ok(Some(ranks.filter_map(|rank| self.0.get_mut(&rank)?.pop_front()).collect()))
    }

    /// Takes what a rank has to tell, and waits for it if so wanted; whether there was anything.
    fn hear(&mut self, job: &Job, wait: bool) -> Result<bool, TrainError> {
        let notice = if wait { job.wait(NAME)? } else { job.poll(NAME)? };
        let Some(notice) = notice else { return Ok(false) };
        let mut numbers = notice.payload.as_chunks().0.iter().copied().map(f64::from_le_bytes);
        let told = Told { seconds: numbers.next().unwrap_or_default(), sums: numbers.collect() };
        self.0.entry(notice.from).or_default().push_back(told);
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
                let of_step = |step: f64| Told { seconds: step + rank, sums: vec![step + rank, 0.25 * rank] };
                let sums = (0..5).map(|step| {
                    losses.tell(&distributed, of_step(f64::from(step))).expect("told");
                    let all = losses.bring_together(&distributed, true).expect("told");
                    all.map(|all| Told::whole(&all).expect("as many numbers"))
                });
                sums.collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect::<Vec<_>>();
        let told: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let of_all = (0..5).map(|step| {
            Some(Told { seconds: f64::from(step + 2), sums: vec![f64::from(3 * step + 3), 0.75] })
        });
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
        let told = |seconds, sum: f64| Told { seconds, sums: vec![sum] };
        for step in 0..3 {
            losses.tell(first, told(f64::from(step), f64::from(step))).expect("told");
            assert_eq!(
                losses.bring_together(first, false).expect("sound"),
                None,
                "the other has told nothing"
            );
        }
        (0..2).for_each(|step| other.tell(second, told(7.0, f64::from(10 * step))).expect("told"));
        assert_eq!(
            losses.bring_together(first, false).expect("sound"),
            Some(vec![told(0.0, 0.0), told(7.0, 0.0)])
        );
        assert_eq!(
            losses.bring_together(first, false).expect("sound"),
            Some(vec![told(1.0, 1.0), told(7.0, 10.0)])
        );
        assert_eq!(losses.bring_together(first, false).expect("sound"), None);
    }
}
