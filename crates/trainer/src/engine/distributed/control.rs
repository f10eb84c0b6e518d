//! The control plane of a rank: the job, and signals that it passes on to all ranks.

use super::{AgreedAction, Job, StopReason};
use phalanx_run::{StopFlag, StopSubscription};

/// The control plane of a rank.
pub(super) struct ControlPlane {
    job: Job,
    /// Requests a stop of all ranks when this rank is told to stop.
    stopping: Option<StopSubscription>,
    /// Requests to leave when this rank is told to leave.
    leaving: Option<StopSubscription>,
}

impl ControlPlane {
    /// Creates the control plane of a job, without signals.
    pub(super) fn new(job: Job) -> Self {
        Self { job, stopping: None, leaving: None }
    }

    pub(super) fn job(&self) -> &Job {
        &self.job
    }

    /// Replaces the job by that of the next world. Signals still go to the last one.
    pub(super) fn set_job(&mut self, job: Job) {
        self.job = job;
    }

    /// Requests a stop of all ranks when the flag is raised.
    pub(super) fn stop_on(&mut self, stop: &StopFlag) {
        let job = self.job.clone();
        self.stopping = Some(stop.subscribe(move || {
            // A world that is broken or left ends without a request.
            let _ = job.request_stop(&StopReason::Asked);
        }));
    }

    /// Requests that the rank of this number leaves when the flag is raised.
    pub(super) fn leave_on(&mut self, leave: &StopFlag, number: usize) {
        let job = self.job.clone();
        self.leaving = Some(leave.subscribe(move || {
            // A world that is broken or left is not left by a request.
            let _ = job.request(AgreedAction::Leave(number));
        }));
    }

    /// Ignores signals from now on.
    pub(super) fn unsubscribe(&mut self) {
        (self.stopping, self.leaving) = (None, None);
    }
}
