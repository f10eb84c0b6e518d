//! A communicator's access to the control plane of its world.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::command::{Command, RejoinPlan, RejoinRequest, StopRequest, Task};
use super::frame::shortened;
use super::job_state::{Notice, Stop};
use super::state::{Activities, RankState};
use super::timeouts::{ASKING, TELLING};
use crate::error::{CommError, Result};
use crate::failure::Cause;

/// The control plane of a world.
pub(crate) enum ControlPlane {
    /// Ranks are threads of one process and share their state.
    Local {
        ranks: Vec<RankState>,
        /// Held during a vote, so that votes follow each other.
        voting: Mutex<()>,
    },
    /// A control thread talks to the other processes.
    Remote {
        commands: UnboundedSender<Command>,
        state: RankState,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
}

impl ControlPlane {
    /// The control plane of threads of one process, with the state of each rank.
    pub(crate) fn local(ranks: Vec<RankState>) -> Self {
        Self::Local { ranks, voting: Mutex::default() }
    }

    /// The control plane of a process, with the queue of commands for its control thread.
    pub(crate) fn remote(state: RankState) -> (Self, UnboundedReceiver<Command>) {
        let (commands, receiver) = unbounded_channel();
        (Self::Remote { commands, state, thread: Mutex::default() }, receiver)
    }

    /// Keeps the handle of the control thread, which [`ControlPlane::leave`] joins.
    pub(crate) fn keep(&self, handle: std::thread::JoinHandle<()>) {
        if let Self::Remote { thread, .. } = self {
            *thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
    }

    /// Returns the activity of all ranks of the world on a communicator.
    pub(crate) fn ask(&self, communicator: u32) -> Activities {
        match self {
            Self::Local { ranks, .. } => {
                ranks.iter().map(|rank| Some(rank.recorder.activity(communicator))).collect()
            }
            Self::Remote { commands, .. } => {
                let (answer, answered) = bounded(1);
                let asked = commands.send(Command::Ask(communicator, answer));
                asked.ok().and_then(|()| answered.recv_timeout(ASKING).ok()).unwrap_or_default()
            }
        }
    }

    /// Returns the time to wait for the control plane to tell why a link broke; at most `limit`.
    pub(crate) fn verdict_after(&self, limit: Duration) -> Duration {
        match self {
            // A channel closes only when its rank is gone; no other thread knows more.
            Self::Local { .. } => Duration::ZERO,
            Self::Remote { .. } => limit,
        }
    }

    /// Tells all ranks that the world is broken, as `rank` found. The first report of a world counts.
    pub(crate) fn report(&self, rank: usize, cause: Cause) {
        match self {
            Self::Local { ranks, .. } => {
                if !ranks[rank].failure.is_set() {
                    // The flag of rank 0 decides which of two simultaneous reports was first.
                    ranks[0].failure.set(cause.clone());
                    let first = ranks[0].failure.get().unwrap_or(cause);
                    for rank in ranks {
                        rank.failure.set(first.clone());
                    }
                }
            }
            Self::Remote { commands, state, .. } => {
                if state.failure.set(cause.clone()) {
                    let (told, done) = bounded::<()>(0);
                    if commands.send(Command::Broken(cause, told)).is_ok() {
                        let _ = done.recv_timeout(TELLING);
                    }
                }
            }
        }
    }

    /// Breaks a world of processes from the control thread itself, which tells the others later.
    pub(crate) fn alert(&self, cause: Cause) {
        if let Self::Remote { commands, state, .. } = self
            && state.failure.set(cause.clone())
        {
            let (told, _) = bounded(0);
            let _ = commands.send(Command::Broken(cause, told));
        }
    }

    /// Leaves in good order as rank `rank`, and waits until the others were told.
    pub(crate) fn leave(&self, rank: usize) {
        self.state(rank).job.leave();
        if let Self::Remote { commands, thread, .. } = self {
            let _ = commands.send(Command::Leave);
            if let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = thread.join();
            }
        }
    }

    /// Tells the others that this rank leaves for good while they go on, and waits until they were told.
    pub(super) fn depart(&self) {
        let (told, done) = bounded::<()>(0);
        if self.command(Command::Depart(told)).is_ok() {
            let _ = done.recv_timeout(TELLING);
        }
    }

    /// Returns the state of rank `rank`. Of processes only this one's exists.
    pub(super) fn state(&self, rank: usize) -> &RankState {
        match self {
            Self::Local { ranks, .. } => &ranks[rank],
            Self::Remote { state, .. } => state,
        }
    }

    /// Begins a vote on the step after which ranks stop, unless they have agreed to stop for good.
    pub(super) fn request_stop(&self, rank: usize, reason: &str, goes_on: bool) -> Result<()> {
        match self {
            Self::Local { ranks, voting } => {
                let _one = voting.lock().unwrap_or_else(PoisonError::into_inner);
                if ranks[0].job.stop().is_none() {
                    // All ranks are held before any verdict.
                    let after = ranks.iter().map(|rank| rank.job.vote()).max().flatten();
                    let stop = Stop { after, rank, reason: reason.to_owned(), goes_on };
                    ranks.iter().for_each(|rank| rank.job.decide(stop.clone()));
                }
                Ok(())
            }
            Self::Remote { .. } => {
                self.command(Command::Stop(StopRequest { reason: shortened(reason.to_owned()), goes_on }))
            }
        }
    }

    /// Sends a notice to the coordinator.
    pub(super) fn post(&self, from: usize, name: String, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Local { ranks, .. } => {
                ranks[0].job.deliver(name, Notice { from, payload });
                Ok(())
            }
            Self::Remote { .. } => self.command(Command::Post(name, payload)),
        }
    }

    /// Sends a notice from the coordinator to all other ranks.
    pub(super) fn announce(&self, name: String, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Local { ranks, .. } => {
                for rank in &ranks[1..] {
                    rank.job.deliver(name.clone(), Notice { from: 0, payload: payload.clone() });
                }
                Ok(())
            }
            Self::Remote { .. } => self.command(Command::Announce(name, payload)),
        }
    }

    /// Waits until all surviving ranks of a broken world ask for a new one. `None` if some rank does not within `limit`.
    pub(super) fn rejoin(&self, port: u16, limit: Duration) -> Result<Option<RejoinPlan>> {
        match self {
            Self::Local { .. } => {
                Err(CommError::NotOffered { operation: "rejoin", by: "threads of one process" })
            }
            Self::Remote { .. } => {
                let (answer, answered) = bounded(1);
                self.command(Command::Rejoin(RejoinRequest { port, answer }))?;
                match answered.recv_timeout(limit) {
                    Ok(plan) => Ok(Some(plan?)),
                    Err(RecvTimeoutError::Timeout) => Ok(None),
                    // The coordinator has left.
                    Err(RecvTimeoutError::Disconnected) => Err(CommError::Closed),
                }
            }
        }
    }

    /// Runs a task on the control thread of this process. Threads of one process have none.
    pub(crate) fn spawn(&self, task: Task) -> Result<()> {
        self.command(Command::Spawn(task))
    }

    /// Sends a command to the control thread of this process. Threads of one process need none.
    fn command(&self, command: Command) -> Result<()> {
        match self {
            Self::Local { .. } => Ok(()),
            Self::Remote { commands, .. } => commands.send(command).map_err(|_| CommError::Closed),
        }
    }
}
