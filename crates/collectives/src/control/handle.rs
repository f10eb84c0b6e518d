//! A rank's hold of the control plane: what a program that trains calls.

use std::sync::Arc;
use std::time::Duration;

use super::job::{Ended, Job, Notice, Stop};
use super::{ControlPlane, Regrouping, Watched};
use crate::error::{CommError, Result};
use crate::failure::Cause;

/// The longest name and payload of a notice, in bytes.
const LONGEST_NOTICE: usize = 64 << 10;

/// Small messages between ranks, and the agreement to stop, apart from the communicator's operations.
///
/// What goes through here needs no rank to be at any operation: ranks hear each other while they compute or wait in a
/// collective. Ranks are named by their numbers in the world, also if the control plane is that of a part.
///
/// # Stopping after the same step
///
/// A rank says by [`Control::begin_step`] which step it is about to take. Any rank may ask for a stop, at any time, by
/// [`Control::request_stop`]. Rank 0 then asks all ranks which step they are in; they answer at once, whatever they do,
/// and hold at the beginning of their next step until the verdict has come: the latest step that any of them is in. All
/// take the steps up to that one, and no other. After an interlude, by [`Control::request_interlude`], all go on with the
/// next.
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
    watched: Watched,
}

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Control(rank {})", self.rank)
    }
}

impl Control {
    /// That of the world's rank `rank`.
    pub(crate) fn of(plane: &Arc<ControlPlane>, rank: usize) -> Self {
        Self { plane: plane.clone(), rank, watched: plane.watched(rank).clone() }
    }

    fn job(&self) -> &Job {
        &self.watched.job
    }

    fn error(&self, ended: Ended, doing: &str) -> CommError {
        match ended {
            Ended::Left => CommError::Closed,
            Ended::Broken => {
                let cause = self.watched.failure.get().unwrap_or(Cause::Lost(self.rank));
                cause.error(doing.to_owned(), 0)
            }
        }
    }

    /// Says that this rank is about to take a step. `None`: it may. Otherwise all ranks have agreed to stop after an
    /// earlier step, and this one must not be taken. Steps are numbered alike on all ranks, and grow.
    ///
    /// Unless a stop was requested this costs an atomic store and a load. Once one was, it waits for the verdict, which
    /// needs nothing but the control threads of the ranks.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world broke during the vote; [`CommError::Closed`] if
    /// rank 0 left during it.
    pub fn begin_step(&self, step: u64) -> Result<Option<Stop>> {
        let begun = self.job().begin_step(step, &self.watched.failure);
        begun.map_err(|ended| self.error(ended, "the agreement to stop"))
    }

    /// Asks all ranks to stop after the same step, as soon as can be; returns at once. The first request counts.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn request_stop(&self, reason: &str) -> Result<()> {
        self.check("a request to stop")?;
        self.plane.request_stop(self.rank, reason, false)
    }

    /// Asks all ranks to stop between the same two steps, as soon as can be, and to go on after what the reason says; returns at
    /// once. Requests are met in the order in which they reach rank 0: [`Control::begin_step`] returns each once on every rank,
    /// and is called again for the same step.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn request_interlude(&self, reason: &str) -> Result<()> {
        self.check("a request for an interlude")?;
        self.plane.request_stop(self.rank, reason, true)
    }

    /// The next agreement that this rank has not seen, waiting at most so long for one; `None` if there is none. For ranks that
    /// wait between two steps, as all do after the same agreement: they take no step before the next.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken or breaks meanwhile;
    /// [`CommError::Closed`] if rank 0 left.
    pub fn next_stop(&self, at_most: Duration) -> Result<Option<Stop>> {
        let found = self.job().next_stop(at_most, &self.watched.failure);
        found.map_err(|ended| self.error(ended, "an interlude"))
    }

    /// The agreement to stop for good, if there is one; does not wait.
    pub fn stop(&self) -> Option<Stop> {
        self.job().stop()
    }

    /// Sends a notice to rank 0, which finds it under its name by [`Control::poll`] or [`Control::wait`]; returns at once.
    ///
    /// # Errors
    /// [`CommError::Argument`] if name and payload are longer than 64 KiB; [`CommError::PeerLost`] or
    /// [`CommError::Aborted`] if the world is broken; [`CommError::Closed`] if rank 0 has left.
    pub fn post(&self, name: &str, payload: &[u8]) -> Result<()> {
        self.check("a notice")?;
        self.plane.post(self.rank, checked(name)?, checked_payload(name, payload)?)
    }

    /// Sends a notice from rank 0 to all other ranks; returns at once.
    ///
    /// # Errors
    /// [`CommError::Argument`] on another rank than 0, or if name and payload are longer than 64 KiB;
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken.
    pub fn announce(&self, name: &str, payload: &[u8]) -> Result<()> {
        if self.rank != 0 {
            let problem = format!("rank {} is not rank 0, which alone announces; it can post", self.rank);
            return Err(CommError::Argument { operation: "announcing", problem });
        }
        self.check("a notice")?;
        self.plane.announce(checked(name)?, checked_payload(name, payload)?)
    }

    /// The oldest notice of this name that has come and was not taken; does not wait. Notices of one rank come in order.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken.
    pub fn poll(&self, name: &str) -> Result<Option<Notice>> {
        self.wait(name, Duration::ZERO)
    }

    /// The oldest notice of this name, waiting at most so long for one; `None` if none came.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken or breaks meanwhile;
    /// [`CommError::Closed`] if rank 0 left.
    pub fn wait(&self, name: &str, at_most: Duration) -> Result<Option<Notice>> {
        let found = self.job().notice(name, at_most, &self.watched.failure);
        found.map_err(|ended| self.error(ended, "waiting for a notice"))
    }

    /// Waits until all that are left of this broken world want to meet again, at this rank's port if it is their hub: who they
    /// are.
    pub(crate) fn regroup(&self, port: u16, at_most: Duration) -> Result<Regrouping> {
        // Nobody but the hub knows for whom all wait.
        let late = || CommError::Unmet { seconds: at_most.as_secs_f64() };
        self.plane.regroup(port, at_most)?.ok_or_else(late)
    }

    /// Tells the others, who have agreed to go on without this rank, that it goes and goes on nowhere else, so that it counts on no
    /// side of a network that is cut. Waits until they were told, for a second at most.
    pub fn depart(&self) {
        self.plane.depart();
    }

    /// The oldest notice of this name that came from a rank that is left, of a world that is broken; does not wait. What a rank
    /// has posted before it wanted to meet the others again is there once they have.
    pub fn left_behind(&self, name: &str) -> Option<Notice> {
        self.job().left_behind(name)
    }

    fn check(&self, doing: &str) -> Result<()> {
        if self.watched.failure.is_set() {
            return Err(self.error(Ended::Broken, doing));
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
