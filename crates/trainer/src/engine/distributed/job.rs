//! What ranks tell each other apart from the collectives of a step: that all are to stop, losses, how far saving is.
//!
//! Work of the loop is numbered in *points*: each step is one, and so is what follows it. Before each, a rank asks whether it may
//! begin it. Whoever wants a stop says so at any time, and all ranks stop before the same point.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use phalanx_collectives::{Communicator, Control, Notice};
use serde::{Deserialize, Serialize};

use crate::engine::error::TrainError;

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

/// How long rank 0 sleeps at most between two looks at what the others have said.
const PATIENCE: Duration = Duration::from_secs(60);

/// A rank's part in the job. Clones share it.
#[derive(Debug, Clone)]
pub(in crate::engine) enum Job {
    /// There are no others.
    Alone(Arc<Mutex<Option<StopReason>>>),
    /// The control plane carries it.
    Shared(Control),
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

    /// Says that this rank is about to begin a point; points grow. If all have agreed to stop before it: why.
    pub(in crate::engine) fn begin(&self, point: u64) -> Result<Option<StopReason>, TrainError> {
        match self {
            Self::Alone(stop) => Ok(stop.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Self::Shared(control) => {
                let Some(stop) = control.begin_step(point)? else { return Ok(None) };
                let reason = serde_json::from_str(&stop.reason);
                Ok(Some(reason.map_err(|_| TrainError::Setup(format!("asked to stop: {}", stop.reason)))?))
            }
        }
    }

    /// Asks all ranks to stop before the same point; returns at once. The first request counts.
    pub(in crate::engine) fn request_stop(&self, reason: &StopReason) -> Result<(), TrainError> {
        match self {
            Self::Alone(stop) => {
                stop.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| reason.clone());
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
                    assert_eq!(job.begin(last + 1).expect("agreed"), Some(reason.clone()));
                }
            }
        }
    }
}
