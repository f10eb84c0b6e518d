//! Losses and measures of a step, brought together on rank 0, which alone writes them down.

use std::collections::{BTreeMap, VecDeque};

use phalanx_collectives::Notice;

use crate::engine::TrainError;
use crate::engine::distributed::{Before, Distributed, Job};
use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;

/// What notices of them are called.
const NAME: &str = "losses";

/// What ranks have told of their losses.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// By rank, the oldest first.
    told: BTreeMap<usize, VecDeque<Vec<f64>>>,
    /// Steps that were brought together.
    steps: u64,
    /// What those had told who have died.
    departed: Vec<Departed>,
    /// What this rank has to tell rank 0.
    untold: VecDeque<Vec<f64>>,
}

/// A rank that has died, as long as there are steps of which it had a part.
#[derive(Debug)]
struct Departed {
    told: VecDeque<Vec<f64>>,
    /// The first step that the others share without it, once they have agreed on it.
    until: Option<u64>,
}

impl Losses {
    /// Gives this rank's sums of a step to rank 0. What the world's breaking has kept from being told is told by
    /// [`Losses::go_on`].
    pub(super) fn tell(&mut self, distributed: &Distributed, own: Vec<f64>) -> Result<(), TrainError> {
        if distributed.rank() == 0 {
            self.told.entry(0).or_default().push_back(own);
            return Ok(());
        }
        self.untold.push_back(own);
        self.tell_rest(distributed)
    }

    fn tell_rest(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        while let Some(own) = self.untold.front() {
            let bytes = own.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<_>>();
            distributed.job().post(NAME, &bytes)?;
            self.untold.pop_front();
        }
        Ok(())
    }

    /// Goes on with what those who are left had told, and what those had who have died.
    pub(super) fn go_on(&mut self, distributed: &Distributed, before: &Before) {
        if distributed.rank() > 0 {
            return;
        }
        // Whatever a rank had told before it met the others again has come.
        while let Some(notice) = before.control.left_behind(NAME) {
            self.keep(notice);
        }
        let mut told = std::mem::take(&mut self.told);
        for (rank, place) in before.places.iter().enumerate() {
            self.told.insert(rank, told.remove(place).unwrap_or_default());
        }
        for rank in (0..before.ranks).filter(|rank| !before.places.contains(rank)) {
            self.departed.push(Departed { told: told.remove(&rank).unwrap_or_default(), until: None });
        }
    }

    /// Those who are left share the work anew from step `until` on, and tell what they could not.
    pub(super) fn share_from(&mut self, distributed: &Distributed, until: u64) -> Result<(), TrainError> {
        for departed in &mut self.departed {
            departed.until.get_or_insert(until);
        }
        self.tell_rest(distributed)
    }

    /// Training goes on after so many steps.
    pub(super) fn resume_at(&mut self, steps: u64) {
        self.steps = steps;
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
        while ranks.clone().any(|rank| self.told.get(&rank).is_none_or(VecDeque::is_empty)) {
            if !self.hear(distributed.job(), wait)? {
                return Ok(None);
            }
        }
        let step = self.steps;
        self.steps += 1;
        self.departed.retain(|departed| departed.until.is_none_or(|until| step < until));
        let of_dead: Vec<Option<Vec<f64>>> =
            self.departed.iter_mut().map(|departed| departed.told.pop_front()).collect();
        let mut all: Vec<Vec<f64>> = ranks.filter_map(|rank| self.told.get_mut(&rank)?.pop_front()).collect();
        let silent = of_dead.iter().filter(|told| told.is_none()).count();
        all.extend(of_dead.into_iter().flatten());
        // Who has died before the end of a step leaves its part of it out: the mean is over the others'. Those who only serve
        // have no part.
        let parts = all.len() + distributed.data_size() - distributed.size();
        let whole = (parts + silent) as f64 / parts.max(1) as f64;
        let mut all = all.into_iter();
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
        if silent > 0 {
            sums.iter_mut().for_each(|sum| *sum *= whole);
        }
        Ok(Some(sums))
    }

    /// Takes what a rank has to tell, and waits for it if so wanted; whether there was anything.
    fn hear(&mut self, job: &Job, wait: bool) -> Result<bool, TrainError> {
        let notice = if wait { job.wait(NAME)? } else { job.poll(NAME)? };
        let Some(notice) = notice else { return Ok(false) };
        self.keep(notice);
        Ok(true)
    }

    fn keep(&mut self, notice: Notice) {
        let numbers = notice.payload.as_chunks().0.iter().copied().map(f64::from_le_bytes);
        self.told.entry(notice.from).or_default().push_back(numbers.collect());
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
