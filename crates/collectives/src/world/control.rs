//! The watch: signs of life, and news of ranks that are gone or give up. A star with rank 0 in the middle.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    Abort(usize, String),
    Leave,
}

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

    pub(crate) fn abort(&self, rank: usize, reason: &str) {
        match self {
            Self::Local(failures) => {
                for failure in failures {
                    failure.set(Cause::Aborted(rank, reason.to_owned()));
                }
            }
            Self::Remote { commands, failure, .. } => {
                failure.set(Cause::Aborted(rank, reason.to_owned()));
                let _ = commands.send(Command::Abort(rank, reason.to_owned()));
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
                Some(Message::Aborted { rank, reason }) => Message::Aborted { rank, reason },
                Some(_) => continue,
                None => {
                    writers.retain(|(known, _)| *known != rank);
                    tracing::warn!(rank, "a rank is gone");
                    Message::Lost { rank }
                }
            },
            command = commands.recv() => match command {
                Some(Command::Abort(rank, reason)) => Message::Aborted { rank, reason },
                Some(Command::Leave) | None => {
                    tell(&mut writers, &Message::Bye).await;
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
                Some((_, Some(Message::Bye))) | None => watching = false,
                Some((_, Some(_))) => {}
                Some((_, None)) => {
                    watching = false;
                    failure.set(Cause::Lost(0));
                }
            },
            command = commands.recv() => match command {
                Some(Command::Abort(rank, reason)) => {
                    let _ = frame::write(&mut write, &Message::Aborted { rank, reason }).await;
                }
                Some(Command::Leave) | None => {
                    let _ = frame::write(&mut write, &Message::Bye).await;
                    return;
                }
            },
            _ = beat.tick() => drop(frame::write(&mut write, &Message::Heartbeat).await),
        }
    }
}
