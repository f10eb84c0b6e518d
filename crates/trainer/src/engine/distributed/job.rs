//! Agreements and notices between ranks, apart from the collectives of a step: stops, actions between two steps, losses, progress of
//! checkpoints.
//!
//! The work of the loop is numbered in *points*: each step is one, and the work after it is another. A rank asks before each point whether
//! it may begin. A stop can be requested at any time, and all ranks stop before the same point. Actions that users request are agreed on
//! in the same way, and all ranks continue after them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_collectives::{Communicator, Control, Notice, Stop};
use serde::{Deserialize, Serialize};

use crate::engine::error::TrainError;
use phalanx_run::Request;

/// The reason why all ranks stop before the end of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::engine) enum StopReason {
    /// A user or a scheduler has requested it.
    Asked,
    /// The loss of a phase is not finite.
    NotFinite {
        /// The step, counted from 1.
        step: u64,
        phase: String,
        /// As text: JSON has no such numbers.
        loss: String,
    },
    /// The learning rate of a range test is so high that the loss has diverged.
    RangeTested,
    /// A rank could not write its part of a checkpoint. All ranks learn which when they wait for it.
    Saving,
}

impl StopReason {
    /// The reason that the ranks of a broken world had agreed on, if it ends the run in every world.
    pub(in crate::engine) fn of_broken(control: &Control) -> Option<Self> {
        let reason = serde_json::from_str(&control.stop()?.reason).ok()?;
        matches!(reason, Self::Asked | Self::NotFinite { .. } | Self::RangeTested).then_some(reason)
    }
}

/// An agreement of all ranks before a point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) enum Agreed {
    /// All ranks stop.
    Stop(StopReason),
    /// All ranks take an action and continue.
    Action(AgreedAction),
}

/// An action of all ranks between the same two steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::engine) enum AgreedAction {
    /// The request of a user.
    Asked(Request),
    /// The ranks of these numbers join.
    Join(Vec<usize>),
    /// The rank of this number leaves.
    Leave(usize),
}

/// The longest sleep of rank 0 between two checks for notices.
const SLEEP: Duration = Duration::from_secs(60);

/// A rank's access to agreements and notices. Clones share it.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Job {
    /// There are no other ranks.
    Alone(Arc<Alone>),
    /// By the control plane.
    Shared(Control),
}

/// The requests to the only rank.
#[derive(Debug, Default)]
pub(in crate::engine) struct Alone {
    pending: Mutex<PendingRequests>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingRequests {
    stop: Option<StopReason>,
    actions: VecDeque<AgreedAction>,
}

impl Alone {
    fn pending(&self) -> MutexGuard<'_, PendingRequests> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingRequests {
    fn next(&mut self) -> Option<Agreed> {
        let stop = self.stop.clone().map(Agreed::Stop);
        stop.or_else(|| self.actions.pop_front().map(Agreed::Action))
    }
}

impl Agreed {
    fn from(stop: &Stop) -> Result<Self, TrainError> {
        let unknown = |_| TrainError::Setup(format!("asked to stop: {}", stop.reason));
        Ok(match stop.goes_on {
            true => Self::Action(serde_json::from_str(&stop.reason).map_err(unknown)?),
            false => Self::Stop(serde_json::from_str(&stop.reason).map_err(unknown)?),
        })
    }
}

impl Job {
    /// The job of the only rank.
    pub(in crate::engine) fn alone() -> Self {
        Self::Alone(Arc::default())
    }

    /// The job of the ranks of a communicator.
    pub(in crate::engine) fn shared(communicator: &Communicator) -> Result<Self, TrainError> {
        Ok(Self::Shared(communicator.control()?))
    }

    /// Announces that this rank begins a point; points increase. Returns the agreement before it, if there is one. After an action, call
    /// this again for the same point.
    pub(in crate::engine) fn begin(&self, point: u64) -> Result<Option<Agreed>, TrainError> {
        match self {
            Self::Alone(alone) => Ok(alone.pending().next()),
            Self::Shared(control) => control.begin_step(point)?.as_ref().map(Agreed::from).transpose(),
        }
    }

    /// Waits for the next agreement, at most this long: for ranks that begin no point before it.
    pub(in crate::engine) fn next(&self, at_most: Duration) -> Result<Option<Agreed>, TrainError> {
        match self {
            Self::Alone(alone) => {
                let mut pending = alone.pending();
                if pending.stop.is_none() && pending.actions.is_empty() {
                    let waited = alone.changed.wait_timeout(pending, at_most);
                    pending = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Ok(pending.next())
            }
            Self::Shared(control) => control.next_stop(at_most)?.as_ref().map(Agreed::from).transpose(),
        }
    }

    /// Requests an action of all ranks before the same point; returns at once. The requests of a rank are met in their order.
    pub(in crate::engine) fn request(&self, request: AgreedAction) -> Result<(), TrainError> {
        match self {
            Self::Alone(alone) => {
                alone.pending().actions.push_back(request);
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

    /// Requests a stop of all ranks before the same point; returns at once. The first request counts.
    pub(in crate::engine) fn request_stop(&self, reason: &StopReason) -> Result<(), TrainError> {
        match self {
            Self::Alone(alone) => {
                alone.pending().stop.get_or_insert_with(|| reason.clone());
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

    /// Sends a notice to rank 0.
    pub(in crate::engine) fn post(&self, name: &str, payload: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Shared(control) => Ok(control.post(name, payload)?),
        }
    }

    /// Sends a notice from rank 0 to all others, which receive it by [`Job::wait`].
    pub(in crate::engine) fn announce(&self, name: &str, payload: &[u8]) -> Result<(), TrainError> {
        match self {
            Self::Alone(_) => Ok(()),
            Self::Shared(control) => Ok(control.announce(name, payload)?),
        }
    }

    /// Returns the next notice of this name, if one has arrived.
    pub(in crate::engine) fn poll(&self, name: &str) -> Result<Option<Notice>, TrainError> {
        match self {
            Self::Alone(_) => Ok(None),
            Self::Shared(control) => Ok(control.poll(name)?),
        }
    }

    /// Waits for the next notice of this name. The only rank returns `None`.
    pub(in crate::engine) fn wait(&self, name: &str) -> Result<Option<Notice>, TrainError> {
        let Self::Shared(control) = self else { return Ok(None) };
        loop {
            // A rank that is lost, or that hangs for longer than the heartbeat allows, ends the wait with an error.
            if let Some(notice) = control.wait(name, SLEEP)? {
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
                    assert_eq!(job.begin(7 + ahead as u64 % 2).expect("no request"), None);
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
    fn all_continue_after_an_action() {
        let world = threads(3).expect("threads");
        let shared = world.iter().map(|rank| Job::shared(rank).expect("threads have a control plane"));
        for jobs in [vec![Job::alone()], shared.collect()] {
            let first = &jobs[0];
            jobs.iter().for_each(|job| assert_eq!(job.begin(4).expect("no request"), None));
            first.request(AgreedAction::Asked(Request::Save)).expect("asks");
            first.request(AgreedAction::Asked(Request::Pause)).expect("asks");
            for job in &jobs {
                for request in [Request::Save, Request::Pause] {
                    assert_eq!(
                        job.begin(5).expect("agreed"),
                        Some(Agreed::Action(AgreedAction::Asked(request)))
                    );
                }
                assert_eq!(job.next(Duration::ZERO).expect("no request"), None);
            }
            first.request(AgreedAction::Asked(Request::Resume)).expect("asks");
            for job in &jobs {
                let heard = job.next(Duration::from_secs(20)).expect("agreed");
                assert_eq!(heard, Some(Agreed::Action(AgreedAction::Asked(Request::Resume))));
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
