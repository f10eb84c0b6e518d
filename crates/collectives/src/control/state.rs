//! State of a rank that its control thread and its program share.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use super::job_state::JobState;
use super::meeting::MeetingProgress;
use crate::failure::Failure;
use crate::recorder::{RankActivity, Recorder};

/// Both directions of a connection of the control plane.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection of the control plane, plain or encrypted.
pub(crate) type Connection = Box<dyn Duplex>;

/// A connection of the control plane to a rank.
pub(crate) struct Peer {
    /// The rank's number in the world.
    pub(crate) rank: usize,
    pub(crate) connection: Connection,
}

/// The interval of heartbeats, and the silence after which a rank counts as dead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heartbeat {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// The activity of all ranks of the world, by rank. `None` for ranks that do not answer.
pub(super) type Activities = Vec<Option<RankActivity>>;

/// State of a rank that the control thread reads and writes.
#[derive(Clone)]
pub(crate) struct RankState {
    pub(crate) failure: Arc<Failure>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) job: Arc<JobState>,
    pub(crate) meeting: Arc<MeetingProgress>,
}

impl Default for RankState {
    fn default() -> Self {
        let (failure, job) = (Arc::<Failure>::default(), Arc::<JobState>::default());
        let waiting = Arc::downgrade(&job);
        failure.on_break(move || {
            if let Some(job) = waiting.upgrade() {
                job.wake();
            }
        });
        Self { failure, recorder: Arc::default(), job, meeting: Arc::default() }
    }
}
