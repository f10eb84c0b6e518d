//! Losses and measures of a step, brought together on rank 0, which alone writes them down. Where the run goes on without ranks
//! that die, the others keep what they have told until rank 0 has said that it is written: whoever takes over is told again.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use phalanx_collectives::{Control, Notice};
use phalanx_sharding::SumTree;

use crate::engine::TrainError;
use crate::engine::distributed::{Before, Distributed, Job};
use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;

/// What notices of them are called, and what those that say up to which step all is written.
const NAME: &str = "losses";
const WRITTEN: &str = "written";

/// How often rank 0 says at most what is written.
const SAYING: Duration = Duration::from_millis(100);

/// What a rank tells of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    /// Its number when the run began.
    pub(super) rank: usize,
    /// The step, counted from 1.
    pub(super) step: u64,
    /// Seconds of training when it had done the step, by its own clock.
    pub(super) seconds: f64,
    /// Its logical ranks; none if it has none.
    pub(super) shards: Range<usize>,
    /// Its parts of the losses and measures of the step's phases, one after the other; those of each logical rank after those of the
    /// one before.
    pub(super) sums: Vec<f64>,
}

impl Told {
    /// The sums over all ranks, and the seconds of the last. Added in the order of ranks, so that they are the same numbers in every
    /// run; over logical ranks along the tree over these, so that they are the same on any number of ranks.
    pub(super) fn whole(of_ranks: &[Self]) -> Result<Self, TrainError> {
        let Some((first, others)) = of_ranks.split_first() else {
            return Err(TrainError::Setup("no rank has told its losses".to_owned()));
        };
        if !first.shards.is_empty() {
            return Self::whole_of_shards(of_ranks);
        }
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

    fn whole_of_shards(of_ranks: &[Self]) -> Result<Self, TrainError> {
        let mut of_shards: Vec<&[f64]> = Vec::new();
        for told in of_ranks {
            let numbers = told.sums.len() / told.shards.len().max(1);
            let agree =
                told.shards.start == of_shards.len() && of_shards.iter().all(|sums| sums.len() == numbers);
            if !agree || numbers == 0 {
                let (rank, shards) = (told.rank, &told.shards);
                return Err(TrainError::Setup(format!(
                    "rank {rank} measures {numbers} numbers of each of logical ranks {shards:?}, after {} others",
                    of_shards.len()
                )));
            }
            of_shards.extend(told.sums.chunks_exact(numbers));
        }
        let (shards, numbers) = (of_shards.len(), of_shards.first().map_or(0, |sums| sums.len()));
        let sum = |at: usize| SumTree::new(shards).sum(of_shards.iter().map(|sums| sums[at]).collect());
        let seconds = of_ranks.iter().map(|told| told.seconds).fold(0.0, f64::max);
        let sums = (0..numbers).map(sum).collect();
        Ok(Self { rank: of_ranks[0].rank, step: of_ranks[0].step, seconds, shards: 0..shards, sums })
    }
}

/// What ranks have told of their losses.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// By rank, the oldest first.
    told: BTreeMap<usize, VecDeque<Told>>,
    /// What those had told who have died.
    departed: Vec<Departed>,
    /// What this rank has to tell rank 0.
    untold: VecDeque<Told>,
    /// What it has told, as far as that is not known to be written.
    kept: VecDeque<Told>,
    /// Up to which step all is written, as far as this rank knows, and when rank 0 has said so.
    written: u64,
    said: Option<Instant>,
}

/// A rank that has died, as long as there are steps of which it had a part.
#[derive(Debug)]
struct Departed {
    told: VecDeque<Told>,
    /// The last step of which it had a part, once the others have agreed on it.
    until: Option<u64>,
}

impl Losses {
    /// Gives this rank's sums of a step to rank 0. What the world's breaking has kept from being told is told by
    /// [`Losses::go_on`].
    pub(super) fn tell(&mut self, distributed: &Distributed, own: Told) -> Result<(), TrainError> {
        // Who only serves has no part in losses.
        if distributed.is_server() {
            return Ok(());
        }
        if distributed.rank() == 0 {
            self.told.entry(0).or_default().push_back(own);
            return Ok(());
        }
        if distributed.may_outlive_a_death() {
            self.kept.push_back(own.clone());
        }
        self.untold.push_back(own);
        self.tell_rest(distributed)
    }

    fn tell_rest(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        while let Some(own) = self.untold.front() {
            let Told { rank, step, seconds, shards, sums } = own;
            let head = [*rank as f64, *step as f64, *seconds, shards.start as f64, shards.end as f64];
            let numbers = head.into_iter().chain(sums.iter().copied());
            let bytes = numbers.flat_map(f64::to_le_bytes).collect::<Vec<_>>();
            distributed.job().post(NAME, &bytes)?;
            self.untold.pop_front();
        }
        Ok(())
    }

    /// Says, on rank 0, that all is written up to a step, so that the others need not keep what they have told.
    pub(super) fn say_written(&mut self, distributed: &Distributed, step: u64) {
        self.written = step;
        let said = self.said.is_some_and(|when| when.elapsed() < SAYING);
        if said || !distributed.may_outlive_a_death() {
            return;
        }
        self.said = Some(Instant::now());
        // That the world is broken is noticed before the next step, and then agreed on.
        let _ = distributed.job().announce(WRITTEN, &step.to_le_bytes());
    }

    /// Up to which step all is written, as far as this rank knows.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Up to which step all is written, as far as this rank has heard; what it has told before is forgotten.
    pub(super) fn hear_written(&mut self, distributed: &Distributed) -> Result<u64, TrainError> {
        while distributed.rank() > 0
            && let Some(notice) = distributed.job().poll(WRITTEN)?
        {
            self.written =
                notice.payload.first_chunk().map_or(self.written, |step| u64::from_le_bytes(*step));
        }
        self.forget(self.written);
        Ok(self.written)
    }

    /// Up to this step all is written.
    pub(super) fn begin_after(&mut self, step: u64) {
        self.written = step;
    }

    fn forget(&mut self, written: u64) {
        forget_before(&mut self.kept, written + 1);
    }

    /// What others have told this rank of steps that were not brought together, also in the world that broke.
    pub(super) fn heard(&mut self, control: &Control) -> Vec<Told> {
        while let Some(notice) = control.left_behind(NAME) {
            keep(&mut self.told, &notice);
        }
        self.told.values().flatten().cloned().collect()
    }

    /// Goes on with what those who are left had told, and what those had who have died.
    pub(super) fn go_on(&mut self, distributed: &Distributed, before: &Before) {
        let mut told = std::mem::take(&mut self.told);
        if distributed.rank() == 0 {
            // Whatever a rank had told before it met the others again has come.
            while let Some(notice) = before.control.left_behind(NAME) {
                keep(&mut told, &notice);
            }
        }
        for rank in (0..before.ranks).filter(|rank| !before.places.contains(rank)) {
            self.departed.push(Departed { told: told.remove(&rank).unwrap_or_default(), until: None });
        }
        if distributed.rank() > 0 {
            return;
        }
        for (rank, place) in before.places.iter().enumerate() {
            self.told.insert(rank, told.remove(place).unwrap_or_default());
        }
        // Who has taken over has told this to the one before, and who has not has kept nothing.
        self.told.entry(0).or_default().extend(self.kept.drain(..));
        self.untold.clear();
    }

    /// Those who are left share the work anew after step `until`, and tell rank 0 what it may not have heard, since all is
    /// written up to another step.
    pub(super) fn share_from(
        &mut self,
        distributed: &Distributed,
        until: u64,
        written: u64,
    ) -> Result<(), TrainError> {
        for departed in &mut self.departed {
            departed.until.get_or_insert(until);
        }
        self.written = written;
        self.forget(written);
        if distributed.rank() > 0 {
            self.untold = self.kept.clone();
        }
        self.tell_rest(distributed)
    }

    /// On rank 0, what all ranks have told of a step, in the order of ranks, those that have died last: waits for ranks that have
    /// not told theirs, or returns nothing if one has not. Steps are asked for in order.
    pub(super) fn bring_together(
        &mut self,
        distributed: &Distributed,
        step: u64,
        wait: bool,
    ) -> Result<Option<Vec<Told>>, TrainError> {
        if distributed.rank() > 0 {
            return Ok(None);
        }
        let ranks = 0..distributed.data_size();
        for rank in ranks.clone() {
            let told = self.told.entry(rank).or_default();
            forget_before(told, step);
        }
        while ranks.clone().any(|rank| self.told.get(&rank).is_none_or(VecDeque::is_empty)) {
            if !self.hear(distributed.job(), step, wait)? {
                return Ok(None);
            }
        }
        self.departed.retain(|departed| departed.until.is_none_or(|until| step <= until));
        let mut all = Vec::with_capacity(ranks.len());
        let mut silent = 0;
        let of_living = ranks.filter_map(|rank| self.told.remove(&rank).map(|told| (rank, told)));
        let of_living: Vec<_> = of_living.collect();
        for (rank, mut told) in of_living {
            // A rank that has forgotten the step knew it to be written.
            match of_step(&mut told, step) {
                Some(told) => all.push(told),
                None => silent += 1,
            }
            self.told.insert(rank, told);
        }
        for departed in &mut self.departed {
            forget_before(&mut departed.told, step);
            match of_step(&mut departed.told, step) {
                Some(told) => all.push(told),
                None => silent += 1,
            }
        }
        if silent > 0 {
            // Who has died before the end of a step leaves its part of it out: the mean is over the others'.
            let whole = (all.len() + silent) as f64 / all.len().max(1) as f64;
            all.iter_mut().flat_map(|told| &mut told.sums).for_each(|sum| *sum *= whole);
        }
        Ok(Some(all))
    }

    /// Takes what a rank has to tell, and waits for it if so wanted; whether there was anything.
    fn hear(&mut self, job: &Job, step: u64, wait: bool) -> Result<bool, TrainError> {
        let notice = if wait { job.wait(NAME)? } else { job.poll(NAME)? };
        let Some(notice) = notice else { return Ok(false) };
        keep(&mut self.told, &notice);
        // What was told again of a step that is written is of no use.
        let told = self.told.entry(notice.from).or_default();
        forget_before(told, step);
        Ok(true)
    }
}

/// Forgets what was told of steps before one.
fn forget_before(told: &mut VecDeque<Told>, step: u64) {
    let earlier = told.iter().take_while(|told| told.step < step).count();
    told.drain(..earlier);
}

/// Takes what was told of a step, if that comes next.
fn of_step(told: &mut VecDeque<Told>, step: u64) -> Option<Told> {
    if told.front()?.step == step { told.pop_front() } else { None }
}

/// Adds what a rank tells, unless it has told it before.
fn keep(all: &mut BTreeMap<usize, VecDeque<Told>>, notice: &Notice) {
    let mut numbers = notice.payload.as_chunks().0.iter().copied().map(f64::from_le_bytes);
    let mut next = || numbers.next().unwrap_or_default();
    let (rank, step, seconds) = (next() as usize, next() as u64, next());
    let shards = next() as usize..next() as usize;
    let told = Told { rank, step, seconds, shards, sums: numbers.collect() };
    let of_rank = all.entry(notice.from).or_default();
    if of_rank.back().is_none_or(|last| last.step < step) {
        of_rank.push_back(told);
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
                let (own, rank) = (distributed.rank(), distributed.rank() as f64);
                let of_step = |step: f64| Told {
                    rank: own,
                    step: step as u64 + 1,
                    seconds: step + rank,
                    shards: 0..0,
                    sums: vec![step + rank, 0.25 * rank],
                };
                let sums = (0..5).map(|step| {
                    losses.tell(&distributed, of_step(f64::from(step))).expect("told");
                    let all = losses.bring_together(&distributed, step as u64 + 1, true).expect("told");
                    all.map(|all| Told::whole(&all).expect("as many numbers"))
                });
                sums.collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect::<Vec<_>>();
        let told: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let of_all = (0..5).map(|step| {
            let sums = vec![f64::from(3 * step + 3), 0.75];
            Some(Told { rank: 0, step: step as u64 + 1, seconds: f64::from(step + 2), shards: 0..0, sums })
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
        let told = |step, seconds, sum: f64| Told { rank: 0, step, seconds, shards: 0..0, sums: vec![sum] };
        for step in 0..3 {
            losses.tell(first, told(step + 1, step as f64, step as f64)).expect("told");
            assert_eq!(
                losses.bring_together(first, 1, false).expect("sound"),
                None,
                "the other has told nothing"
            );
        }
        for step in 0..2 {
            other.tell(second, told(step + 1, 7.0, 10.0 * step as f64)).expect("told");
        }
        assert_eq!(
            losses.bring_together(first, 1, false).expect("sound"),
            Some(vec![told(1, 0.0, 0.0), told(1, 7.0, 0.0)])
        );
        // What is told again counts once.
        other.tell(second, told(2, 7.0, 10.0)).expect("told");
        assert_eq!(
            losses.bring_together(first, 2, false).expect("sound"),
            Some(vec![told(2, 1.0, 1.0), told(2, 7.0, 10.0)])
        );
        assert_eq!(losses.bring_together(first, 3, false).expect("sound"), None);
        other.tell(second, told(3, 7.0, 20.0)).expect("told");
        assert_eq!(
            losses.bring_together(first, 3, false).expect("sound"),
            Some(vec![told(3, 2.0, 2.0), told(3, 7.0, 20.0)])
        );
    }

    #[test]
    fn sums_over_logical_ranks_do_not_depend_on_who_has_which() {
        let of_shards = [[1.0, 3.0], [1e16, 0.1], [-1e16, 0.2], [1.0, 0.3], [0.5, 0.4]];
        let told = |cuts: &[usize]| {
            let mut from = 0;
            let told = cuts.iter().enumerate().map(|(rank, to)| {
                let shards = std::mem::replace(&mut from, *to)..*to;
                Told { rank, step: 1, seconds: rank as f64, sums: of_shards[shards.clone()].concat(), shards }
            });
            Told::whole(&told.collect::<Vec<_>>()).expect("sound")
        };
        let alone = told(&[5]);
        assert_eq!(alone.sums[0], ((1.0 + 1e16) + (-1e16 + 1.0)) + 0.5);
        for cuts in [&[2, 5][..], &[3, 5], &[2, 4, 5], &[1, 2, 3, 4, 5]] {
            let whole = told(cuts);
            assert_eq!((&whole.sums, whole.seconds), (&alone.sums, (cuts.len() - 1) as f64));
        }
        let missing = [Told { rank: 1, step: 1, seconds: 0.0, shards: 2..4, sums: vec![0.0; 4] }];
        assert!(Told::whole(&missing).is_err());
    }
}
