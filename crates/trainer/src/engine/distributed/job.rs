//! What ranks tell each other apart from the collectives of a step: that all are to stop, or to do something between two steps,
//! losses, how far saving is.
//!
//! Work of the loop is numbered in *points*: each step is one, and so is what follows it. Before each, a rank asks whether it may
//! begin it. Whoever wants a stop says so at any time, and all ranks stop before the same point. What a user asks for besides is
//! agreed on in that way too, and all ranks go on after it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_collectives::{Communicator, Control, Notice, Stop};
use serde::{Deserialize, Serialize};

use crate::engine::error::TrainError;
use phalanx_run::Request;

/// Why all ranks stop before the end of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::engine) enum StopReason {
    /// A user or a scheduler wants it.
    Asked,
    /// The loss of a phase is not finite.
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        phase: String,
        /// Written out, since JSON has no such numbers.
        loss: String,
    },
    /// A rank could not write its part of a checkpoint; all learn which when they wait for it.
    Saving,
}

/// What all ranks have agreed to do before the same point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) enum Agreed {
    /// To stop for good.
    Stop(StopReason),
    /// Something between two steps; they go on after it.
    Interlude(Interlude),
}

/// What all ranks do between the same two steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::engine) enum Interlude {
    /// What a user has asked for.
    Asked(Request),
    /// These newcomers, by their numbers in the run, take part from the next step on.
    Join(Vec<usize>),
    /// The rank of this number in the run takes part no longer.
    Leave(usize),
}

/// How long rank 0 sleeps at most between two looks at what the others have said.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank's part in the job. Clones share it.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Job {
    /// There are no others.
    Alone(Arc<Alone>),
    /// The control plane carries it.
    Shared(Control),
}

/// What the only rank was asked for.
#[derive(Debug, Default)]
pub(in crate::engine) struct Alone {
    asked: Mutex<Asked>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Asked {
    stop: Option<StopReason>,
    interludes: VecDeque<Interlude>,
}

impl Alone {
    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Asked {
    fn next(&mut self) -> Option<Agreed> {
        let stop = self.stop.clone().map(Agreed::Stop);
        stop.or_else(|| self.interludes.pop_front().map(Agreed::Interlude))
    }
}

impl Agreed {
    fn from(stop: &Stop) -> Result<Self, TrainError> {
        let unknown = |_| TrainError::Setup(format!("asked to stop: {}", stop.reason));
        Ok(match stop.goes_on {
            true => Self::Interlude(serde_json::from_str(&stop.reason).map_err(unknown)?),
            false => Self::Stop(serde_json::from_str(&stop.reason).map_err(unknown)?),
        })
    }
}

impl Job {
    /// That of the only rank.
    pub(in crate::engine) fn alone() -> Self {
        Self::Alone(Arc::default())
    }

    /// That of a rank among others.
    pub(in crate::engine) fn shared(communicator: &Communicator) -> Result<Self, TrainError> {
        Ok(Self::Shared(communicator.control()?))
    }

    /// Says that this rank is about to begin a point; points grow. If all have agreed on something before it: what. After an
    /// interlude this is called again for the same point.
    pub(in crate::engine) fn begin(&self, point: u64) -> Result<Option<Agreed>, TrainError> {
        match self {
            Self::Alone(alone) => Ok(alone.asked().next()),
            Self::Shared(control) => control.begin_step(point)?.as_ref().map(Agreed::from).transpose(),
        }
    }

    /// What all agree on next, waiting at most so long for it: for ranks that begin no point before that.
    pub(in crate::engine) fn next(&self, at_most: Duration) -> Result<Option<Agreed>, TrainError> {
        match self {
            Self::Alone(alone) => {
                let mut asked = alone.asked();
                if asked.stop.is_none() && asked.interludes.is_empty() {
                    let waited = alone.changed.wait_timeout(asked, at_most);
                    asked = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Ok(asked.next())
            }
            Self::Shared(control) => control.next_stop(at_most)?.as_ref().map(Agreed::from).transpose(),
        }
    }

    /// Asks all ranks for an interlude before the same point; returns at once. Requests are met in the order in which they are
    /// made on a rank.
    pub(in crate::engine) fn request(&self, request: Interlude) -> Result<(), TrainError> {
        match self {
            Self::Alone(alone) => {
                alone.asked().interludes.push_back(request);
                alone.changed.notify_all();
            }
            Self::Shared(control) => {
                let reason =
                    serde_json::to_string(&request).map_err(|error| TrainError::Setup(error.to_string()))?;
                control.request_interlude(&reason)?;
            }
        }
        Ok(())
    }

    /// Asks all ranks to stop before the same point; returns at once. The first request counts.
    pub(in crate::engine) fn request_stop(&self, reason: &StopReason) -> Result<(), TrainError> {
        match self {
            Self::Alone(alone) => {
                alone.asked().stop.get_or_insert_with(|| reason.clone());
                alone.changed.notify_all();
            }
            Self::Shared(control) => {
                let reason =
                    serde_json::to_string(reason).map_err(|error| TrainError::Setup(error.to_string()))?;
                control.request_stop(&reason)?;
            }
        }
        Ok(())
    }

    /// Tells rank 0 something.
    pub(in crate::engine) fn post(&self, name: &str, payload: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Shared(control) => Ok(control.post(name, payload)?),
        }
    }

    /// Has rank 0 tell all others something, which they hear by [`Job::wait`].
    pub(in crate::engine) fn announce(&self, name: &str, payload: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Shared(control) => Ok(control.announce(name, payload)?),
        }
    }

    /// What somebody has told rank 0 under this name, if anybody has.
    pub(in crate::engine) fn poll(&self, name: &str) -> Result<Option<Notice>, TrainError> {
        match self {
            Self::Alone(_) => Ok(None),
            Self::Shared(control) => Ok(control.poll(name)?),
        }
    }

    /// What the next rank tells rank 0 under this name; waits for it. The only rank has nobody to wait for.
    pub(in crate::engine) fn wait(&self, name: &str) -> Result<Option<Notice>, TrainError> {
        let Self::Shared(control) = self else { return Ok(None) };
        loop {
            // A rank that is lost, or has hung for longer than the heartbeat allows, ends the wait with an error.
            if let Some(notice) = control.wait(name, PATIENCE)? {
                return Ok(Some(notice));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    #[test]
    fn all_stop_before_the_same_point_and_know_why() {
        let reasons = [
            StopReason::Asked,
            StopReason::NotFinite { step: 3, phase: "critic".into(), loss: "-inf".into() },
        ];
        for reason in reasons {
            let world = threads(3).expect("threads");
            let shared = world.iter().map(|rank| Job::shared(rank).expect("threads have a control plane"));
            for jobs in [vec![Job::alone()], shared.collect()] {
                for (ahead, job) in jobs.iter().enumerate() {
                    assert_eq!(job.begin(7 + ahead as u64 % 2).expect("nobody has asked"), None);
                }
                let asks = jobs.last().expect("a rank");
                asks.request_stop(&reason).expect("asks");
                asks.request_stop(&StopReason::Saving).expect("too late to count");
                let last = if jobs.len() > 1 { 8 } else { 7 };
                for job in &jobs {
                    assert_eq!(job.begin(last + 1).expect("agreed"), Some(Agreed::Stop(reason.clone())));
                }
            }
        }
    }

    #[test]
    fn all_go_on_after_what_a_user_has_asked_for() {
        let world = threads(3).expect("threads");
        let shared = world.iter().map(|rank| Job::shared(rank).expect("threads have a control plane"));
        for jobs in [vec![Job::alone()], shared.collect()] {
            let first = &jobs[0];
            jobs.iter().for_each(|job| assert_eq!(job.begin(4).expect("nobody has asked"), None));
            first.request(Interlude::Asked(Request::Save)).expect("asks");
            first.request(Interlude::Asked(Request::Pause)).expect("asks");
            for job in &jobs {
                for request in [Request::Save, Request::Pause] {
                    assert_eq!(
                        job.begin(5).expect("agreed"),
                        Some(Agreed::Interlude(Interlude::Asked(request)))
                    );
                }
                assert_eq!(job.next(Duration::ZERO).expect("nobody has asked"), None);
            }
            first.request(Interlude::Asked(Request::Resume)).expect("asks");
            for job in &jobs {
                let heard = job.next(Duration::from_secs(20)).expect("agreed");
                assert_eq!(heard, Some(Agreed::Interlude(Interlude::Asked(Request::Resume))));
                assert_eq!(job.begin(5).expect("goes on"), None);
            }
            first.request_stop(&StopReason::Asked).expect("asks");
            for job in &jobs {
                let heard = job.next(Duration::from_secs(20)).expect("agreed");
                assert_eq!(heard, Some(Agreed::Stop(StopReason::Asked)));
                assert_eq!(job.begin(6).expect("agreed"), Some(Agreed::Stop(StopReason::Asked)));
            }
        }
    }
}
