//! The control plane: signs of life, news of ranks that are gone or give up, notices, and the agreement to stop. A star with a
//! hub in the middle: rank 0, and when that is lost, until those who are left have met again, the lowest that lives.
//!
//! To be read in this order: `process` says who has ended, `frame` has the messages, `job` what a rank knows of its job, `quorum`
//! which half of a world goes on, `reunion` who meets again, `hub` is the hub's side and `leaf` every other's, `succession` how a
//! hub is followed by another, `handle` what programs call.

pub(crate) mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod handle;
mod hub;
mod job;
mod leaf;
mod process;
mod quorum;
mod reunion;
mod succession;

pub use handle::Control;
pub use job::{Notice, Stop};

pub(crate) use process::{Look, Process};
pub(crate) use succession::{Caller, Calling, Doors, Succession};

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use frame::Message;
use hub::Became;
use job::Job;
use leaf::Ended;
use succession::Found;

use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::recorder::{Doing, Recorder};
use crate::sealed::is_altered;

/// Both directions of a connection of the control plane.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A connection of the control plane, plain or encrypted.
pub(crate) type Connection = Box<dyn Duplex>;

/// The most ranks of a world.
pub(crate) const MOST_RANKS: usize = 1 << 16;

/// How often ranks give signs of life, and after which silence one counts as dead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heartbeat {
    pub(crate) interval: Duration,
    pub(crate) timeout: Duration,
}

/// What the watch of a rank reads and writes.
#[derive(Clone)]
pub(crate) struct Watched {
    pub(crate) failure: Arc<Failure>,
    pub(crate) recorder: Arc<Recorder>,
    pub(crate) job: Arc<Job>,
}

impl Default for Watched {
    fn default() -> Self {
        let (failure, job) = (Arc::<Failure>::default(), Arc::<Job>::default());
        let waiting = Arc::downgrade(&job);
        failure.on_break(move || {
            if let Some(job) = waiting.upgrade() {
                job.wake();
            }
        });
        Self { failure, recorder: Arc::default(), job }
    }
}

/// What all ranks of the world are doing, by rank; nothing from those that do not answer.
type All = Vec<Option<Doing>>;

/// A rank's word to the watch.
pub(crate) enum Command {
    /// The world is broken: tell everybody, then let go of the sender, which is how the caller knows.
    Broken(Cause, Sender<()>),
    /// What is everybody doing on a communicator?
    Ask(u32, Sender<All>),
    /// A notice for the hub.
    Post(String, Vec<u8>),
    /// A notice of the hub for all others.
    Announce(String, Vec<u8>),
    /// This rank wants all to stop.
    Stop(Request),
    /// This rank wants to meet those again that are left of a broken world.
    Regroup(Wanted),
    /// This rank goes, while the others go on without it: tell everybody, then let go of the sender.
    Depart(Sender<()>),
    /// Something to be done beside the watch, as long as this rank is in the world.
    Spawn(Task),
    Leave,
}

/// What a rank wants all to stop for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) reason: String,
    /// Whether steps go on after an interlude.
    pub(crate) goes_on: bool,
}

/// A meeting of those who are left of a broken world, as a rank wants it.
pub(crate) struct Wanted {
    /// Where the others find this rank, should it be the hub.
    pub(crate) port: u16,
    pub(crate) answer: Sender<Result<Regrouping, Unmet>>,
}

/// Who is left of a broken world, and where they meet.
#[derive(Debug, Clone)]
pub(crate) struct Regrouping {
    /// By their numbers in that world. The first is the hub.
    pub(crate) members: Vec<usize>,
    /// Where the hub waits for them.
    pub(crate) at: IpAddr,
    pub(crate) port: u16,
    /// Breaks when one of them is lost while they meet.
    pub(crate) meeting: Arc<Failure>,
}

/// Why those who are left of a broken world do not meet, or this rank does not meet them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Unmet {
    /// Those who cannot be reached may be more.
    Minority { left: Vec<usize>, lost: Vec<usize>, world_size: usize },
    /// Rank `by` has not let this one in.
    LeftOut { rank: usize, by: usize, reason: String },
}

impl From<Unmet> for CommError {
    fn from(unmet: Unmet) -> Self {
        match unmet {
            Unmet::Minority { left, lost, world_size } => Self::Minority { left, lost, world_size },
            Unmet::LeftOut { rank, by, reason } => Self::LeftOut { rank, by, reason },
        }
    }
}

/// What the control thread does beside its watch.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How long the hub waits for everybody's answer, and how long whoever asked waits for the hub's.
const ANSWERING: Duration = Duration::from_millis(700);
const ASKING: Duration = Duration::from_millis(1500);

/// How long a rank that reports a failure waits until the others were told: it may be about to exit.
const TELLING: Duration = Duration::from_secs(1);

/// How long a rank that leaves waits for the other side to have read its goodbye.
const PARTING: Duration = Duration::from_secs(1);

/// How a communicator reaches the watch of its world.
pub(crate) enum ControlPlane {
    /// Threads of one process share their failures.
    Local {
        ranks: Vec<Watched>,
        /// One vote at a time.
        voting: Mutex<()>,
    },
    /// A thread talks to the other processes.
    Remote {
        commands: UnboundedSender<Command>,
        watched: Watched,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
}

impl ControlPlane {
    pub(crate) fn local(ranks: Vec<Watched>) -> Self {
        Self::Local { ranks, voting: Mutex::default() }
    }

    /// What all ranks of the world are doing on a communicator.
    pub(crate) fn ask(&self, communicator: u32) -> All {
        match self {
            Self::Local { ranks, .. } => {
                ranks.iter().map(|rank| Some(rank.recorder.doing(communicator))).collect()
            }
            Self::Remote { commands, .. } => {
                let (answer, answered) = bounded(1);
                let asked = commands.send(Command::Ask(communicator, answer));
                asked.ok().and_then(|()| answered.recv_timeout(ASKING).ok()).unwrap_or_default()
            }
        }
    }

    pub(crate) fn remote(watched: Watched) -> (Self, UnboundedReceiver<Command>) {
        let (commands, receiver) = unbounded_channel();
        (Self::Remote { commands, watched, thread: Mutex::default() }, receiver)
    }

    /// Remembers the watch's thread, to wait for it when leaving.
    pub(crate) fn keep(&self, handle: std::thread::JoinHandle<()>) {
        if let Self::Remote { thread, .. } = self {
            *thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
    }

    /// How long this rank waits for the watch to say why a link broke, when at most `patience` is sensible.
    pub(crate) fn verdict_after(&self, patience: Duration) -> Duration {
        match self {
            // A channel only closes when its rank is gone, and there is nobody else to ask.
            Self::Local { .. } => Duration::ZERO,
            Self::Remote { .. } => patience,
        }
    }

    /// Tells all ranks that the world is broken, as `rank` found. The first report of a world counts.
    pub(crate) fn report(&self, rank: usize, cause: Cause) {
        match self {
            Self::Local { ranks, .. } => {
                if !ranks[rank].failure.is_set() {
                    // Rank 0's place decides which of two reports at the same time was first.
                    ranks[0].failure.set(cause.clone());
                    let first = ranks[0].failure.get().unwrap_or(cause);
                    for rank in ranks {
                        rank.failure.set(first.clone());
                    }
                }
            }
            Self::Remote { commands, watched, .. } => {
                if watched.failure.set(cause.clone()) {
                    let (told, done) = bounded::<()>(0);
                    if commands.send(Command::Broken(cause, told)).is_ok() {
                        let _ = done.recv_timeout(TELLING);
                    }
                }
            }
        }
    }

    /// Breaks the world of processes, from the control thread itself, which tells the others when it comes to it.
    pub(crate) fn alert(&self, cause: Cause) {
        if let Self::Remote { commands, watched, .. } = self
            && watched.failure.set(cause.clone())
        {
            let (told, _) = bounded(0);
            let _ = commands.send(Command::Broken(cause, told));
        }
    }

    /// Rank `rank` leaves in good order; waits until the others were told.
    pub(crate) fn leave(&self, rank: usize) {
        self.watched(rank).job.leave();
        if let Self::Remote { commands, thread, .. } = self {
            let _ = commands.send(Command::Leave);
            if let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = thread.join();
            }
        }
    }

    /// Tells the others that this rank goes on nowhere, and waits until they were told.
    fn depart(&self) {
        let (told, done) = bounded::<()>(0);
        if self.command(Command::Depart(told)).is_ok() {
            let _ = done.recv_timeout(TELLING);
        }
    }

    /// What the watch of rank `rank` writes: of processes there is this one's.
    fn watched(&self, rank: usize) -> &Watched {
        match self {
            Self::Local { ranks, .. } => &ranks[rank],
            Self::Remote { watched, .. } => watched,
        }
    }

    /// Begins the vote on the step after which ranks stop, unless they have agreed to stop for good.
    fn request_stop(&self, rank: usize, reason: &str, goes_on: bool) -> Result<()> {
        match self {
            Self::Local { ranks, voting } => {
                let _one = voting.lock().unwrap_or_else(PoisonError::into_inner);
                if ranks[0].job.stop().is_none() {
                    // All are held before any verdict.
                    let after = ranks.iter().map(|rank| rank.job.vote()).max().flatten();
                    let stop = Stop { after, rank, reason: reason.to_owned(), goes_on };
                    ranks.iter().for_each(|rank| rank.job.decide(stop.clone()));
                }
                Ok(())
            }
            Self::Remote { .. } => {
                self.command(Command::Stop(Request { reason: shortened(reason.to_owned()), goes_on }))
            }
        }
    }

    fn post(&self, from: usize, name: String, payload: Vec<u8>) -> Result<()> {
        match self {
            Self::Local { ranks, .. } => {
                ranks[0].job.deliver(name, Notice { from, payload });
                Ok(())
            }
            Self::Remote { .. } => self.command(Command::Post(name, payload)),
        }
    }

    fn announce(&self, name: String, payload: Vec<u8>) -> Result<()> {
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

    /// Waits until all that are left of a broken world want to meet again; nothing if somebody has not come in time.
    fn regroup(&self, port: u16, at_most: Duration) -> Result<Option<Regrouping>> {
        match self {
            Self::Local { .. } => Err(CommError::NotOffered {
                operation: "a meeting of those who are left",
                by: "threads of one process",
            }),
            Self::Remote { .. } => {
                let (answer, answered) = bounded(1);
                self.command(Command::Regroup(Wanted { port, answer }))?;
                match answered.recv_timeout(at_most) {
                    Ok(met) => Ok(Some(met?)),
                    Err(RecvTimeoutError::Timeout) => Ok(None),
                    // The hub has left.
                    Err(RecvTimeoutError::Disconnected) => Err(CommError::Closed),
                }
            }
        }
    }

    /// Has the control thread of this process do something beside its watch; threads of one process have none.
    pub(crate) fn spawn(&self, task: Task) -> Result<()> {
        self.command(Command::Spawn(task))
    }

    /// Tells the control thread of this process; threads of one process need none.
    fn command(&self, command: Command) -> Result<()> {
        match self {
            Self::Local { .. } => Ok(()),
            Self::Remote { commands, .. } => commands.send(command).map_err(|_| CommError::Closed),
        }
    }
}

impl From<Cause> for Message {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Lost(rank) => Self::Lost { rank },
            Cause::Aborted(rank, reason) => Self::Aborted { rank, reason: shortened(reason) },
        }
    }
}

/// A reason that fits a frame of the control plane.
fn shortened(mut reason: String) -> String {
    const LONGEST: usize = 64 << 10;
    if reason.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// How a rank has met the others: as rank 0, to which all have come, or as one that has come there.
pub(crate) enum Met {
    Hub(Vec<(usize, Connection)>),
    Leaf(Connection),
}

/// A rank's watch over the world, until it leaves: as or with the hub that there is at any time.
pub(crate) async fn watch(
    heartbeat: Heartbeat,
    met: Met,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
    mut succession: Succession,
) {
    let (mut hub, mut wanted) = match met {
        Met::Hub(peers) => {
            return hub::watch(heartbeat, Became::First(peers), commands, watched, succession).await;
        }
        Met::Leaf(stream) => ((0, stream), None),
    };
    loop {
        let ended = leaf::watch(heartbeat, hub, &mut commands, &watched, &mut succession, wanted).await;
        let Ended::HubLost(unanswered) = ended else { return };
        match succession.find(heartbeat, &mut commands, unanswered).await {
            Found::Hub(next, unanswered) => (hub, wanted) = (next, unanswered),
            Found::Own(callers, unanswered) => {
                let became = Became::Successor(callers, unanswered);
                return hub::watch(heartbeat, became, commands, watched, succession).await;
            }
            Found::Left => return,
        }
    }
}

/// What is heard: a message of a rank, or that its connection broke; by which of its connections, as one may come anew.
type Heard = (usize, u64, Option<Message>);

/// Reads a connection until it breaks, is silent for too long, or says goodbye.
/// What was altered on its way is this rank's `own` reason to give up. `line` tells connections of one rank apart.
async fn listen(
    (own, rank, line): (usize, usize, u64),
    mut from: ReadHalf<Connection>,
    patience: Duration,
    to: UnboundedSender<Heard>,
) {
    loop {
        match timeout(patience, frame::read(&mut from)).await {
            Ok(Ok(message)) => {
                let last = matches!(message, Message::Bye);
                if to.send((rank, line, Some(message))).is_err() || last {
                    return;
                }
            }
            Ok(Err(error)) if is_altered(&error) => {
                let reason =
                    format!("what came from rank {rank} on the control plane was altered on its way");
                let _ = to.send((rank, line, Some(Message::Aborted { rank: own, reason })));
                let _ = to.send((rank, line, None));
                return;
            }
            Ok(Err(_)) | Err(_) => {
                let _ = to.send((rank, line, None));
                return;
            }
        }
    }
}
