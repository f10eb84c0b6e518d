//! What a rank knows of its job: the step that it is in, whether all shall stop after one, and notices from other ranks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// The agreement of all ranks to stop, for good or for an interlude.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The last step that any rank takes before; `None` if no rank had begun one.
    pub after: Option<u64>,
    /// The rank that asked for it first.
    pub rank: usize,
    /// Its reason.
    pub reason: String,
    /// Whether steps go on, once every rank has done what was asked for.
    pub goes_on: bool,
}

/// A small message from another rank, outside of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The rank that sent it, by its number in the world.
    pub from: usize,
    /// What it says.
    pub payload: Vec<u8>,
}

/// Why a wait ended without what was waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The world is broken.
    Broken,
    /// This rank, or rank 0, has left.
    Left,
}

/// One rank's part in the job. The thread of the control plane writes it while the rank computes or waits for others.
#[derive(Debug, Default)]
pub(crate) struct Job {
    /// The step that the rank has begun last, plus one; 0 before the first.
    step: AtomicU64,
    /// Set when a vote begins, until every verdict was given to the rank, or for good: whoever begins a step looks for it.
    hold: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Votes without a verdict so far.
    votes: usize,
    /// Verdicts that the rank was not given, in the order of their votes. One for good is the last, and stays.
    verdicts: VecDeque<Stop>,
    left: bool,
    notices: BTreeMap<String, VecDeque<Notice>>,
}

impl Job {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the rank is about to take a step. Without a vote that is one store and one load. With one it waits for the
    /// verdict, which it gives if the step must not be taken.
    ///
    /// Both are sequentially consistent with [`Job::vote`]: either the vote counts this step, or the rank sees the hold.
    pub(super) fn begin_step(&self, step: u64, failure: &Failure) -> Result<Option<Stop>, Ended> {
        self.step.store(step.saturating_add(1), Ordering::SeqCst);
        if !self.hold.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let mut state = self.state();
        loop {
            if let Some(stop) = state.verdicts.front() {
                if stop.after.is_some_and(|last| step <= last) {
                    // No later vote ends before this one, so the step may be taken whatever they come to.
                    return Ok(None);
                }
                let stop = state.take();
                // The step was not begun after all: who votes next need not wait for it.
                self.step.store(step, Ordering::SeqCst);
                return Ok(stop);
            }
            if state.votes == 0 {
                // Whoever begins a vote has the lock.
                self.hold.store(false, Ordering::SeqCst);
                return Ok(None);
            }
            state = self.wait(state, failure, None)?;
        }
    }

    /// The next verdict, whatever step it names, waiting at most so long for one: for a rank that takes no step before it.
    pub(super) fn next_stop(&self, at_most: Duration, failure: &Failure) -> Result<Option<Stop>, Ended> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        while state.verdicts.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.wait(state, failure, Some(left))?;
        }
        Ok(state.take())
    }

    /// Sleeps until something has changed, at most so long, unless nothing will come any more.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, State>,
        failure: &Failure,
        at_most: Option<Duration>,
    ) -> Result<MutexGuard<'s, State>, Ended> {
        if failure.is_set() {
            return Err(Ended::Broken);
        }
        if state.left {
            return Err(Ended::Left);
        }
        Ok(match at_most {
            Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Holds the rank at its next step, and gives the one that it is in: none before the first, and none of a rank that has
    /// left, which will take no other. A verdict must follow.
    pub(super) fn vote(&self) -> Option<u64> {
        let mut state = self.state();
        state.votes += 1;
        self.hold.store(true, Ordering::SeqCst);
        let step = self.step.load(Ordering::SeqCst);
        step.checked_sub(1).filter(|_| !state.left)
    }

    /// Brings the verdict of the oldest vote. None follows one for good.
    pub(super) fn decide(&self, stop: Stop) {
        let mut state = self.state();
        state.votes = state.votes.saturating_sub(1);
        if state.verdicts.back().is_none_or(|last| last.goes_on) {
            state.verdicts.push_back(stop);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The verdict to stop for good, if there is one.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.state().verdicts.back().filter(|last| !last.goes_on).cloned()
    }

    /// This rank or rank 0 leaves: no verdict and no notice will come.
    pub(super) fn leave(&self) {
        self.state().left = true;
        self.changed.notify_all();
    }

    pub(super) fn has_left(&self) -> bool {
        self.state().left
    }

    /// Wakes who waits, to look whether the world is broken.
    pub(super) fn wake(&self) {
        // Whoever waits holds the lock until it sleeps, so that it does not miss this.
        drop(self.state());
        self.changed.notify_all();
    }

    /// Brings a notice.
    pub(super) fn deliver(&self, name: String, notice: Notice) {
        self.state().notices.entry(name).or_default().push_back(notice);
        self.changed.notify_all();
    }

    /// The oldest notice of a name, whatever has become of the world.
    pub(super) fn left_behind(&self, name: &str) -> Option<Notice> {
        self.state().notices.get_mut(name).and_then(VecDeque::pop_front)
    }

    /// The oldest notice of a name, waiting at most so long for one.
    pub(super) fn notice(
        &self,
        name: &str,
        at_most: Duration,
        failure: &Failure,
    ) -> Result<Option<Notice>, Ended> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        loop {
            if failure.is_set() {
                return Err(Ended::Broken);
            }
            if let Some(notice) = state.notices.get_mut(name).and_then(VecDeque::pop_front) {
                return Ok(Some(notice));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            if state.left {
                return Err(Ended::Left);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    /// Gives the oldest verdict.
    fn take(&mut self) -> Option<Stop> {
        match self.verdicts.front()?.goes_on {
            true => self.verdicts.pop_front(),
            false => self.verdicts.front().cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_up_to_the_verdict_are_taken_and_no_other() {
        let (job, failure) = (Job::default(), Failure::default());
        assert_eq!(job.begin_step(4, &failure), Ok(None));
        assert_eq!(job.vote(), Some(4));
        let stop = Stop { after: Some(6), rank: 2, reason: "enough".into(), goes_on: false };
        job.decide(stop.clone());
        job.decide(Stop { after: Some(1), ..stop.clone() });
        assert_eq!([5, 6].map(|step| job.begin_step(step, &failure)), [Ok(None), Ok(None)]);
        assert_eq!(job.begin_step(7, &failure), Ok(Some(stop)));
    }

    #[test]
    fn steps_go_on_after_an_interlude_and_verdicts_come_in_order() {
        let (job, failure) = (Job::default(), Failure::default());
        assert_eq!(job.begin_step(4, &failure), Ok(None));
        assert_eq!(job.vote(), Some(4));
        let interlude = |after, reason: &str| Stop { after, rank: 0, reason: reason.into(), goes_on: true };
        job.decide(interlude(Some(4), "save"));
        // A second vote before the rank has heard of the first verdict.
        assert_eq!(job.vote(), Some(4));
        job.decide(interlude(Some(4), "pause"));
        assert_eq!(job.begin_step(5, &failure), Ok(Some(interlude(Some(4), "save"))));
        assert_eq!(job.begin_step(5, &failure), Ok(Some(interlude(Some(4), "pause"))));
        // A rank that waits between two steps is in none of them, and hears at once.
        assert_eq!(job.next_stop(Duration::ZERO, &failure), Ok(None));
        assert_eq!(job.vote(), Some(4));
        job.decide(interlude(Some(4), "resume"));
        assert_eq!(job.next_stop(Duration::ZERO, &failure), Ok(Some(interlude(Some(4), "resume"))));
        assert_eq!([5, 6].map(|step| job.begin_step(step, &failure)), [Ok(None), Ok(None)]);
        assert!(!job.hold.load(Ordering::SeqCst), "a step costs a store and a load again");
        assert_eq!(job.stop(), None);
        assert_eq!(job.vote(), Some(6));
        let last = Stop { goes_on: false, ..interlude(Some(6), "enough") };
        job.decide(last.clone());
        assert_eq!(job.begin_step(7, &failure), Ok(Some(last.clone())));
        assert_eq!(
            (job.next_stop(Duration::ZERO, &failure), job.stop()),
            (Ok(Some(last.clone())), Some(last))
        );
    }

    #[test]
    fn a_rank_that_is_held_hears_that_the_world_broke() {
        let (job, failure) = (Job::default(), Failure::default());
        assert_eq!(job.vote(), None);
        failure.set(crate::failure::Cause::Lost(1));
        assert_eq!(job.begin_step(0, &failure), Err(Ended::Broken));
        assert_eq!(job.notice("metrics", Duration::from_secs(9), &failure), Err(Ended::Broken));
        job.leave();
        assert_eq!(job.begin_step(0, &Failure::default()), Err(Ended::Left));
    }
}
