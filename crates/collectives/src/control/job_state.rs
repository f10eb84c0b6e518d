//! State of a rank's job: its step, agreements to stop, and notices from other ranks.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::failure::Failure;

/// An agreement of all ranks to stop after the same step, for good or for an interlude.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stop {
    /// The last step before the stop; `None` if no rank had begun one.
    pub after: Option<u64>,
    /// The rank that asked first.
    pub rank: usize,
    /// Its reason.
    pub reason: String,
    /// True for an interlude: steps go on once every rank has done what was asked for.
    pub goes_on: bool,
}

/// A small message from another rank outside of operations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// The rank that sent it, by its number in the world.
    pub from: usize,
    /// Its content.
    pub payload: Vec<u8>,
}

/// The reason why a wait ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitError {
    /// The world is broken.
    Broken,
    /// This rank, or rank 0, has left.
    Left,
}

/// One rank's part in the job. The control thread writes it while the rank computes or waits for others.
#[derive(Debug, Default)]
pub(crate) struct JobState {
    /// The last step that the rank has begun, plus one; 0 before the first.
    step: AtomicU64,
    /// True from the begin of a vote until the rank was given every verdict, or for good. Each step checks it.
    hold: AtomicBool,
    state: Mutex<Agreements>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Agreements {
    /// Votes without a verdict.
    votes: usize,
    /// Verdicts that the rank was not given yet, in the order of their votes. A verdict to stop for good is the last, and stays.
    verdicts: VecDeque<Stop>,
    left: bool,
    notices: BTreeMap<String, VecDeque<Notice>>,
}

impl JobState {
    fn state(&self) -> MutexGuard<'_, Agreements> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a step. Without a vote this costs one store and one load. During a vote it waits for the verdict, and returns it if
    /// the step must not be taken.
    ///
    /// Store and load are sequentially consistent with [`JobState::vote`]: either the vote counts this step, or the rank sees the hold.
    pub(super) fn begin_step(&self, step: u64, failure: &Failure) -> Result<Option<Stop>, WaitError> {
        self.step.store(step.saturating_add(1), Ordering::SeqCst);
        if !self.hold.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let mut state = self.state();
        loop {
            if let Some(stop) = state.verdicts.front() {
                if stop.after.is_some_and(|last| step <= last) {
                    // Later votes end after this one, so none of them can forbid the step.
                    return Ok(None);
                }
                let stop = state.take();
                // The step was not begun after all, so the next vote must not count it.
                self.step.store(step, Ordering::SeqCst);
                return Ok(stop);
            }
            if state.votes == 0 {
                // A vote begins under the lock, so none begins here.
                self.hold.store(false, Ordering::SeqCst);
                return Ok(None);
            }
            state = self.wait(state, failure, None)?;
        }
    }

    /// Returns the next verdict, for a rank between two steps. Waits up to `at_most` for one.
    pub(super) fn next_stop(&self, at_most: Duration, failure: &Failure) -> Result<Option<Stop>, WaitError> {
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

    /// Sleeps until the state changes or `at_most` has passed. Returns an error if no change can come any more.
    fn wait<'s>(
        &self,
        state: MutexGuard<'s, Agreements>,
        failure: &Failure,
        at_most: Option<Duration>,
    ) -> Result<MutexGuard<'s, Agreements>, WaitError> {
        if failure.is_set() {
            return Err(WaitError::Broken);
        }
        if state.left {
            return Err(WaitError::Left);
        }
        Ok(match at_most {
            Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
        })
    }

    /// Holds the rank at its next step and returns its current one. `None` before the first step, and for a rank that has left. A
    /// verdict must follow.
    pub(super) fn vote(&self) -> Option<u64> {
        let mut state = self.state();
        state.votes += 1;
        self.hold.store(true, Ordering::SeqCst);
        let step = self.step.load(Ordering::SeqCst);
        step.checked_sub(1).filter(|_| !state.left)
    }

    /// Stores the verdict of the oldest vote. None follows a verdict to stop for good.
    pub(super) fn decide(&self, stop: Stop) {
        let mut state = self.state();
        state.votes = state.votes.saturating_sub(1);
        if state.verdicts.back().is_none_or(|last| last.goes_on) {
            state.verdicts.push_back(stop);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Returns the verdict to stop for good, if there is one.
    pub(super) fn stop(&self) -> Option<Stop> {
        self.state().verdicts.back().filter(|last| !last.goes_on).cloned()
    }

    /// Records that this rank or rank 0 has left: no verdict and no notice will come.
    pub(super) fn leave(&self) {
        self.state().left = true;
        self.changed.notify_all();
    }

    pub(super) fn has_left(&self) -> bool {
        self.state().left
    }

    /// Wakes waiting threads, so that they see that the world is broken.
    pub(super) fn wake(&self) {
        // A waiting thread holds the lock until it sleeps, so it cannot miss the notification.
        drop(self.state());
        self.changed.notify_all();
    }

    /// Stores a notice.
    pub(super) fn deliver(&self, name: String, notice: Notice) {
        self.state().notices.entry(name).or_default().push_back(notice);
        self.changed.notify_all();
    }

    /// Takes the oldest notice of a name, even if the world is broken.
    pub(super) fn left_behind(&self, name: &str) -> Option<Notice> {
        self.state().notices.get_mut(name).and_then(VecDeque::pop_front)
    }

    /// Takes the oldest notice of a name. Waits up to `at_most` for one.
    pub(super) fn notice(
        &self,
        name: &str,
        at_most: Duration,
        failure: &Failure,
    ) -> Result<Option<Notice>, WaitError> {
        let until = Instant::now() + at_most;
        let mut state = self.state();
        loop {
            if failure.is_set() {
                return Err(WaitError::Broken);
            }
            if let Some(notice) = state.notices.get_mut(name).and_then(VecDeque::pop_front) {
                return Ok(Some(notice));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.wait(state, failure, Some(left))?;
        }
    }
}

impl Agreements {
    /// Returns the oldest verdict, and removes it unless it is for good.
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
        let (job, failure) = (JobState::default(), Failure::default());
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
        let (job, failure) = (JobState::default(), Failure::default());
        assert_eq!(job.begin_step(4, &failure), Ok(None));
        assert_eq!(job.vote(), Some(4));
        let interlude = |after, reason: &str| Stop { after, rank: 0, reason: reason.into(), goes_on: true };
        job.decide(interlude(Some(4), "save"));
        // A second vote before the rank was given the first verdict.
        assert_eq!(job.vote(), Some(4));
        job.decide(interlude(Some(4), "pause"));
        assert_eq!(job.begin_step(5, &failure), Ok(Some(interlude(Some(4), "save"))));
        assert_eq!(job.begin_step(5, &failure), Ok(Some(interlude(Some(4), "pause"))));
        // A rank between two steps gets the verdict at once.
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
        let (job, failure) = (JobState::default(), Failure::default());
        assert_eq!(job.vote(), None);
        failure.set(crate::failure::Cause::Lost(1));
        assert_eq!(job.begin_step(0, &failure), Err(WaitError::Broken));
        assert_eq!(job.notice("metrics", Duration::from_secs(9), &failure), Err(WaitError::Broken));
        job.leave();
        assert_eq!(job.begin_step(0, &Failure::default()), Err(WaitError::Left));
    }
}
