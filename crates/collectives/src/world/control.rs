//! The watch: signs of life, and news of ranks that are gone or give up. A star with rank 0 in the middle.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::config::WorldConfig;
use super::frame::{self, Message};
use crate::failure::{Cause, Failure};

/// A rank's word to the watch.
#[derive(Debug)]
pub(crate) enum Command {
    /// The world is broken: tell everybody, then let go of the sender, which is how the caller knows.
    Broken(Cause, Sender<()>),
    Leave,
}

/// How long a rank that reports a failure waits until the others were told: it may be about to exit.
const TELLING: Duration = Duration::from_secs(1);

/// How long a rank that leaves waits for the other side to have read its goodbye.
const PARTING: Duration = Duration::from_secs(1);

/// How a communicator reaches the watch of its world.
pub(crate) enum Control {
    /// Threads of one process share their failures.
    Local(Vec<Arc<Failure>>),
    /// A thread talks to the other processes.
    Remote {
        commands: UnboundedSender<Command>,
        failure: Arc<Failure>,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
}

impl Control {
    pub(crate) fn local(failures: Vec<Arc<Failure>>) -> Self {
        Self::Local(failures)
    }

    pub(super) fn remote(failure: Arc<Failure>) -> (Self, UnboundedReceiver<Command>) {
        let (commands, receiver) = unbounded_channel();
        (Self::Remote { commands, failure, thread: Mutex::default() }, receiver)
    }

    /// Remembers the watch's thread, to wait for it when leaving.
    pub(super) fn keep(&self, handle: std::thread::JoinHandle<()>) {
        if let Self::Remote { thread, .. } = self {
            *thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        }
    }

    /// How long this rank waits for the watch to say why a link broke, when at most `patience` is sensible.
    pub(crate) fn verdict_after(&self, patience: Duration) -> Duration {
        match self {
            // A channel only closes when its rank is gone, and there is nobody else to ask.
            Self::Local(_) => Duration::ZERO,
            Self::Remote { .. } => patience,
        }
    }

    /// Tells all ranks that the world is broken, as `rank` found. The first report of a world counts.
    pub(crate) fn report(&self, rank: usize, cause: Cause) {
        match self {
            Self::Local(failures) => {
                if failures[rank].get().is_none() {
                    // Rank 0's place decides which of two reports at the same time was first.
                    failures[0].set(cause.clone());
                    let first = failures[0].get().unwrap_or(cause);
                    for failure in failures {
                        failure.set(first.clone());
                    }
                }
            }
            Self::Remote { commands, failure, .. } => {
                if failure.set(cause.clone()) {
                    let (told, done) = bounded::<()>(0);
                    if commands.send(Command::Broken(cause, told)).is_ok() {
                        let _ = done.recv_timeout(TELLING);
                    }
                }
            }
        }
    }

    /// Leaves in good order and waits until the others were told.
    pub(crate) fn leave(&self) {
        if let Self::Remote { commands, thread, .. } = self {
            let _ = commands.send(Command::Leave);
            if let Some(thread) = thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = thread.join();
            }
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

/// What rank 0 hears: a message of a rank, or that its connection broke.
type Heard = (usize, Option<Message>);

/// Reads a connection until it breaks, is silent for too long, or says goodbye.
async fn listen(rank: usize, mut from: OwnedReadHalf, patience: Duration, to: UnboundedSender<Heard>) {
    loop {
        match timeout(patience, frame::read(&mut from)).await {
            Ok(Ok(message)) => {
                let last = matches!(message, Message::Bye);
                if to.send((rank, Some(message))).is_err() || last {
                    return;
                }
            }
            Ok(Err(_)) | Err(_) => {
                let _ = to.send((rank, None));
                return;
            }
        }
    }
}

/// Rank 0's watch: hears all ranks and passes news on.
pub(super) async fn watch_as_hub(
    config: &WorldConfig,
    peers: Vec<(usize, TcpStream)>,
    mut commands: UnboundedReceiver<Command>,
    failure: Arc<Failure>,
) {
    let (to, mut heard) = unbounded_channel::<Heard>();
    let mut writers: Vec<(usize, OwnedWriteHalf)> = Vec::new();
    for (rank, stream) in peers {
        let (read, write) = stream.into_split();
        tokio::spawn(listen(rank, read, config.heartbeat_timeout, to.clone()));
        writers.push((rank, write));
    }
    let mut beat = tokio::time::interval(config.heartbeat_interval);
    loop {
        let news = tokio::select! {
            Some((rank, message)) = heard.recv() => match message {
                Some(Message::Bye) => {
                    writers.retain(|(known, _)| *known != rank);
                    continue;
                }
                Some(news @ (Message::Aborted { .. } | Message::Lost { .. })) => news,
                Some(_) => continue,
                None => {
                    writers.retain(|(known, _)| *known != rank);
                    tracing::warn!(rank, "a rank is gone");
                    Message::Lost { rank }
                }
            },
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => {
                    tell(&mut writers, &cause.into()).await;
                    drop(told);
                    continue;
                }
                Some(Command::Leave) | None => {
                    tell(&mut writers, &Message::Bye).await;
                    // The end of each stream, and then its listener's end, says that the goodbye was read.
                    drop(writers);
                    drop(to);
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick() => Message::Heartbeat,
        };
        match &news {
            Message::Lost { rank } => drop(failure.set(Cause::Lost(*rank))),
            Message::Aborted { rank, reason } => drop(failure.set(Cause::Aborted(*rank, reason.clone()))),
            _ => {}
        }
        tell(&mut writers, &news).await;
    }
}

/// Tells all ranks; who cannot be told is noticed by its listener.
async fn tell(writers: &mut [(usize, OwnedWriteHalf)], message: &Message) {
    for (_, writer) in writers {
        // A rank that is stopped does not read; it must not hold up the news for the others.
        let _ = timeout(Duration::from_millis(500), frame::write(writer, message)).await;
    }
}

/// The watch of every other rank: hears rank 0 and tells it.
pub(super) async fn watch_as_leaf(
    config: &WorldConfig,
    hub: TcpStream,
    mut commands: UnboundedReceiver<Command>,
    failure: Arc<Failure>,
) {
    let (read, mut write) = hub.into_split();
    let (to, mut heard) = unbounded_channel::<Heard>();
    tokio::spawn(listen(0, read, config.heartbeat_timeout, to));
    let mut beat = tokio::time::interval(config.heartbeat_interval);
    let mut watching = true;
    loop {
        tokio::select! {
            message = heard.recv(), if watching => match message {
                Some((_, Some(Message::Lost { rank }))) => drop(failure.set(Cause::Lost(rank))),
                Some((_, Some(Message::Aborted { rank, reason }))) => drop(failure.set(Cause::Aborted(rank, reason))),
                Some((_, Some(Message::Bye))) | None => {
                    watching = false;
                    // Rank 0 waits for this end of the connection before it closes its own.
                    let _ = write.shutdown().await;
                }
                Some((_, Some(_))) => {}
                Some((_, None)) => {
                    watching = false;
                    failure.set(Cause::Lost(0));
                }
            },
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => {
                    let _ = frame::write(&mut write, &cause.into()).await;
                    drop(told);
                }
                Some(Command::Leave) | None => {
                    let _ = frame::write(&mut write, &Message::Bye).await;
                    let _ = write.shutdown().await;
                    // Closing with unread messages would discard the goodbye on its way.
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick(), if watching => drop(frame::write(&mut write, &Message::Heartbeat).await),
        }
    }
}
