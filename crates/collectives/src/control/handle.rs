//! The program's access to the control plane.

use std::sync::Arc;
use std::time::Duration;

use super::command::RejoinPlan;
use super::job_state::{JobState, Notice, Stop, WaitError};
use super::plane::ControlPlane;
use super::state::RankState;
use crate::error::{CommError, Result};
use crate::failure::Cause;

/// The longest name and payload of a notice, in bytes.
const LONGEST_NOTICE: usize = 64 << 10;

/// Small messages between ranks and the agreement to stop, independent of the communicator's operations.
///
/// Ranks hear each other while they compute or wait in a collective. Their numbers are those in the world, even if the
/// communicator has only some of its ranks.
///
/// # Stopping after the same step
///
/// A rank calls [`Control::begin_step`] before each step. Any rank may ask for a stop at any time by [`Control::request_stop`].
/// Rank 0 then asks all ranks for their current step. Their control threads answer at once, and each rank waits at its next step
/// for the verdict: the latest step of any rank. All take the steps up to that one and no other. After an interlude
/// ([`Control::request_interlude`]) all go on with the next step.
///
/// ```
/// use phalanx_collectives::threads;
///
/// # fn main() -> Result<(), phalanx_collectives::CommError> {
/// let alone = threads(1)?.remove(0);
/// let control = alone.control()?;
/// for step in 0.. {
///     if let Some(stop) = control.begin_step(step)? {
///         assert_eq!((stop.after, step), (Some(3), 4));
///         break;
///     }
///     if step == 3 {
///         control.request_stop("time is up")?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Control {
    plane: Arc<ControlPlane>,
    rank: usize,
    state: RankState,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control(rank {})", self.rank)
    }
}

impl Control {
    /// The access of the world's rank `rank`.
    pub(crate) fn of(plane: &Arc<ControlPlane>, rank: usize) -> Self {
        Self { plane: plane.clone(), rank, state: plane.state(rank).clone() }
    }

    fn job(&self) -> &JobState {
        &self.state.job
    }

    fn error(&self, ended: WaitError, doing: &str) -> CommError {
        match ended {
            WaitError::Left => CommError::Closed,
            WaitError::Broken => {
                let cause = self.state.failure.get().unwrap_or(Cause::Lost(self.rank));
                cause.error(doing.to_owned(), 0)
            }
        }
    }

    /// Begins a step. Returns `None` if the rank may take it. Otherwise all ranks have agreed to stop after an earlier step, and
    /// this one must not be taken. All ranks number their steps alike, in increasing order.
    ///
    /// Without a request to stop this costs an atomic store and a load. With one it waits for the verdict, which needs only the
    /// control threads of the ranks.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world broke during the vote; [`CommError::Closed`] if
    /// rank 0 left during it.
    pub fn begin_step(&self, step: u64) -> Result<Option<Stop>> {
        let begun = self.job().begin_step(step, &self.state.failure);
        begun.map_err(|ended| self.error(ended, "the agreement to stop"))
    }

    /// Asks all ranks to stop after the same step as soon as possible. Returns at once. The first request counts.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn request_stop(&self, reason: &str) -> Result<()> {
        self.check("a request to stop")?;
        self.plane.request_stop(self.rank, reason, false)
    }

    /// Asks all ranks to stop between the same two steps as soon as possible, do what the reason names, and go on. Returns at once.
    ///
    /// Requests are met in the order in which they reach rank 0. [`Control::begin_step`] returns each once on every rank; the rank
    /// then calls it again for the same step.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn request_interlude(&self, reason: &str) -> Result<()> {
        self.check("a request for an interlude")?;
        self.plane.request_stop(self.rank, reason, true)
    }

    /// Returns the next agreement that this rank has not seen; `None` if none comes within `at_most`. For ranks that wait between two
    /// steps.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken or breaks during the wait;
    /// [`CommError::Closed`] if rank 0 left.
    pub fn next_stop(&self, at_most: Duration) -> Result<Option<Stop>> {
        let found = self.job().next_stop(at_most, &self.state.failure);
        found.map_err(|ended| self.error(ended, "an interlude"))
    }

    /// Returns the agreement to stop for good, if there is one. Does not wait.
    pub fn stop(&self) -> Option<Stop> {
        self.job().stop()
    }

    /// Sends a notice to rank 0, which reads it by [`Control::poll`] or [`Control::wait`]. Returns at once.
    ///
    /// # Errors
    /// [`CommError::Argument`] if name and payload are longer than 64 KiB; [`CommError::PeerLost`] or
    /// [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn post(&self, name: &str, payload: &[u8]) -> Result<()> {
        self.check("a notice")?;
        self.plane.post(self.rank, checked(name)?, checked_payload(name, payload)?)
    }

    /// Sends a notice from rank 0 to all other ranks. Returns at once.
    ///
    /// # Errors
    /// [`CommError::Argument`] on another rank than 0, or if name and payload are longer than 64 KiB;
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken.
    pub fn announce(&self, name: &str, payload: &[u8]) -> Result<()> {
        if self.rank != 0 {
            let problem =
                format!("rank {} cannot announce; only rank 0 can, other ranks can post", self.rank);
            return Err(CommError::Argument { operation: "announcing", problem });
        }
        self.check("a notice")?;
        self.plane.announce(checked(name)?, checked_payload(name, payload)?)
    }

    /// Takes the oldest notice of this name. Does not wait. Notices of one rank arrive in order.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken.
    pub fn poll(&self, name: &str) -> Result<Option<Notice>> {
        self.wait(name, Duration::ZERO)
    }

    /// Takes the oldest notice of this name; `None` if none comes within `at_most`.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken or breaks during the wait;
    /// [`CommError::Closed`] if rank 0 left.
    pub fn wait(&self, name: &str, at_most: Duration) -> Result<Option<Notice>> {
        let found = self.job().notice(name, at_most, &self.state.failure);
        found.map_err(|ended| self.error(ended, "waiting for a notice"))
    }

    /// Waits until all surviving ranks of this broken world ask for a new one, and returns its members. `port` is where this rank
    /// waits for them if it is the coordinator.
    pub(crate) fn rejoin(&self, port: u16, at_most: Duration) -> Result<RejoinPlan> {
        // Only the coordinator knows which rank does not come.
        let late = || CommError::Unmet { seconds: at_most.as_secs_f64() };
        self.plane.rejoin(port, at_most)?.ok_or_else(late)
    }

    /// Tells the other ranks, which go on without this one, that it leaves for good. It then counts for no side of a divided network.
    /// Waits at most a second until they were told.
    pub fn depart(&self) {
        self.plane.depart();
    }

    /// Takes the oldest notice of this name even if the world is broken. Does not wait. After [`crate::rejoin`] it returns all
    /// notices that surviving ranks posted before.
    pub fn left_behind(&self, name: &str) -> Option<Notice> {
        self.job().left_behind(name)
    }

    fn check(&self, doing: &str) -> Result<()> {
        if self.state.failure.is_set() {
            return Err(self.error(WaitError::Broken, doing));
        }
        if self.job().has_left() { Err(CommError::Closed) } else { Ok(()) }
    }
}

fn checked(name: &str) -> Result<String> {
    checked_payload(name, &[]).map(|_| name.to_owned())
}

fn checked_payload(name: &str, payload: &[u8]) -> Result<Vec<u8>> {
    let bytes = name.len() + payload.len();
    if bytes <= LONGEST_NOTICE {
        return Ok(payload.to_vec());
    }
    let problem = format!("name and payload have {bytes} bytes; a notice has at most {LONGEST_NOTICE}");
    Err(CommError::Argument { operation: "a notice", problem })
}
