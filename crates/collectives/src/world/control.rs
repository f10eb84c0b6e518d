//! The watch: signs of life, and news of ranks that are gone or give up. A star with rank 0 in the middle.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use tokio::io::{AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::config::WorldConfig;
use super::frame::{self, Message};
use super::handshake::Connection;
use crate::engine::{Doing, Recorder};
use crate::failure::{Cause, Failure};

/// What the watch of a rank reads and writes.
#[derive(Clone, Default)]
pub(crate) struct Watched {
    pub(crate) failure: Arc<Failure>,
    pub(crate) recorder: Arc<Recorder>,
}

/// What all ranks of the world are doing, by rank; nothing from those that do not answer.
type All = Vec<Option<Doing>>;

/// A rank's word to the watch.
pub(crate) enum Command {
    /// The world is broken: tell everybody, then let go of the sender, which is how the caller knows.
    Broken(Cause, Sender<()>),
    /// What is everybody doing on a communicator?
    Ask(u32, Sender<All>),
    Leave,
}

/// How long rank 0 waits for everybody's answer, and how long whoever asked waits for rank 0's.
const ANSWERING: Duration = Duration::from_millis(700);
const ASKING: Duration = Duration::from_millis(1500);

/// How long a rank that reports a failure waits until the others were told: it may be about to exit.
const TELLING: Duration = Duration::from_secs(1);

/// How long a rank that leaves waits for the other side to have read its goodbye.
const PARTING: Duration = Duration::from_secs(1);

/// How a communicator reaches the watch of its world.
pub(crate) enum Control {
    /// Threads of one process share their failures.
    Local(Vec<Watched>),
    /// A thread talks to the other processes.
    Remote {
        commands: UnboundedSender<Command>,
        failure: Arc<Failure>,
        thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    },
}

impl Control {
    pub(crate) fn local(ranks: Vec<Watched>) -> Self {
        Self::Local(ranks)
    }

    /// What all ranks of the world are doing on a communicator.
    pub(crate) fn ask(&self, communicator: u32) -> All {
        match self {
            Self::Local(ranks) => ranks.iter().map(|rank| Some(rank.recorder.doing(communicator))).collect(),
            Self::Remote { commands, .. } => {
                let (answer, answered) = bounded(1);
                let asked = commands.send(Command::Ask(communicator, answer));
                asked.ok().and_then(|()| answered.recv_timeout(ASKING).ok()).unwrap_or_default()
            }
        }
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
            Self::Local(ranks) => {
                if !ranks[rank].failure.is_set() {
                    // Rank 0's place decides which of two reports at the same time was first.
                    ranks[0].failure.set(cause.clone());
                    let first = ranks[0].failure.get().unwrap_or(cause);
                    for rank in ranks {
                        rank.failure.set(first.clone());
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
async fn listen(rank: usize, mut from: ReadHalf<Connection>, patience: Duration, to: UnboundedSender<Heard>) {
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

/// A question that rank 0 collects answers to.
struct Question {
    number: u64,
    /// The rank that asked; nobody's, if it was this one.
    from: Result<usize, Sender<All>>,
    answers: All,
    until: Instant,
}

/// Rank 0's watch over the others.
struct Hub {
    writers: Vec<(usize, WriteHalf<Connection>)>,
    watched: Watched,
    world_size: usize,
    questions: Vec<Question>,
    asked: u64,
}

/// Rank 0's watch: hears all ranks and passes news on.
pub(super) async fn watch_as_hub(
    config: &WorldConfig,
    peers: Vec<(usize, Connection)>,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
) {
    let (to, mut heard) = unbounded_channel::<Heard>();
    let mut writers: Vec<(usize, WriteHalf<Connection>)> = Vec::new();
    for (rank, stream) in peers {
        let (read, write) = tokio::io::split(stream);
        tokio::spawn(listen(rank, read, config.heartbeat_timeout, to.clone()));
        writers.push((rank, write));
    }
    let mut hub = Hub { writers, watched, world_size: config.world_size, questions: Vec::new(), asked: 0 };
    let mut beat = tokio::time::interval(config.heartbeat_interval);
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            Some((rank, message)) = heard.recv() => hub.hear(rank, message).await,
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => {
                    hub.tell(&cause.into()).await;
                    drop(told);
                }
                Some(Command::Ask(communicator, answer)) => hub.ask(communicator, Err(answer)).await,
                Some(Command::Leave) | None => {
                    hub.tell(&Message::Bye).await;
                    // The end of each stream, and then its listener's end, says that the goodbye was read.
                    drop(hub);
                    drop(to);
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick() => hub.tell(&Message::Heartbeat).await,
            _ = look.tick(), if !hub.questions.is_empty() => hub.answer_due().await,
        }
    }
}

impl Hub {
    async fn hear(&mut self, rank: usize, message: Option<Message>) {
        let news = match message {
            Some(Message::Bye) => {
                self.writers.retain(|(known, _)| *known != rank);
                return;
            }
            Some(Message::Ask { communicator }) => return self.ask(communicator, Ok(rank)).await,
            Some(Message::Doing { question, doing }) => {
                if let Some(asked) = self.questions.iter_mut().find(|asked| asked.number == question) {
                    asked.answers[rank] = Some(doing);
                }
                return self.answer_due().await;
            }
            Some(Message::Aborted { rank, reason }) => Cause::Aborted(rank, reason),
            Some(Message::Lost { rank }) => Cause::Lost(rank),
            Some(_) => return,
            None => {
                self.writers.retain(|(known, _)| *known != rank);
                tracing::warn!(rank, "a rank is gone");
                Cause::Lost(rank)
            }
        };
        self.watched.failure.set(news.clone());
        self.tell(&news.into()).await;
    }

    /// Tells all ranks; who cannot be told is noticed by its listener.
    async fn tell(&mut self, message: &Message) {
        for (_, writer) in &mut self.writers {
            // A rank that is stopped does not read; it must not hold up the news for the others.
            let _ = timeout(Duration::from_millis(500), frame::write(writer, message)).await;
        }
    }

    /// Asks all ranks what they are doing.
    async fn ask(&mut self, communicator: u32, from: Result<usize, Sender<All>>) {
        self.asked += 1;
        let mut answers = vec![None; self.world_size];
        answers[0] = Some(self.watched.recorder.doing(communicator));
        let until = Instant::now() + ANSWERING;
        self.questions.push(Question { number: self.asked, from, answers, until });
        self.tell(&Message::Tell { question: self.asked, communicator }).await;
        self.answer_due().await;
    }

    /// Answers the questions that all have answered, or whose time is up.
    async fn answer_due(&mut self) {
        let now = Instant::now();
        let (due, open) = std::mem::take(&mut self.questions)
            .into_iter()
            .partition(|asked: &Question| asked.until <= now || !asked.answers.contains(&None));
        self.questions = open;
        for Question { from, answers, .. } in due {
            match from {
                Err(own) => drop(own.send(answers)),
                Ok(rank) => {
                    if let Some((_, writer)) = self.writers.iter_mut().find(|(known, _)| *known == rank) {
                        let answer = Message::All { doing: answers };
                        let _ = timeout(Duration::from_millis(500), frame::write(writer, &answer)).await;
                    }
                }
            }
        }
    }
}

/// The watch of every other rank: hears rank 0 and tells it.
pub(super) async fn watch_as_leaf(
    config: &WorldConfig,
    hub: Connection,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
) {
    let failure = &watched.failure;
    let (read, mut write) = tokio::io::split(hub);
    let (to, mut heard) = unbounded_channel::<Heard>();
    tokio::spawn(listen(0, read, config.heartbeat_timeout, to));
    let mut beat = tokio::time::interval(config.heartbeat_interval);
    let mut watching = true;
    let mut asking: Option<Sender<All>> = None;
    loop {
        tokio::select! {
            message = heard.recv(), if watching => match message {
                Some((_, Some(Message::Lost { rank }))) => drop(failure.set(Cause::Lost(rank))),
                Some((_, Some(Message::Aborted { rank, reason }))) => drop(failure.set(Cause::Aborted(rank, reason))),
                Some((_, Some(Message::Tell { question, communicator }))) => {
                    let doing = watched.recorder.doing(communicator);
                    let _ = frame::write(&mut write, &Message::Doing { question, doing }).await;
                }
                Some((_, Some(Message::All { doing }))) => {
                    if let Some(asking) = asking.take() {
                        let _ = asking.send(doing);
                    }
                }
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
                Some(Command::Ask(communicator, answer)) => {
                    asking = Some(answer);
                    let _ = frame::write(&mut write, &Message::Ask { communicator }).await;
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
