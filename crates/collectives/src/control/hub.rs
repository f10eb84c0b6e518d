//! Rank 0's side of the control plane: hears all ranks and passes news on.

use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::io::WriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::frame::{self, Message};
use super::{ANSWERING, All, Command, Connection, Heard, Heartbeat, PARTING, Watched, listen};
use crate::failure::Cause;

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
pub(crate) async fn watch_as_hub(
    heartbeat: Heartbeat,
    peers: Vec<(usize, Connection)>,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
) {
    let (to, mut heard) = unbounded_channel::<Heard>();
    let mut writers: Vec<(usize, WriteHalf<Connection>)> = Vec::new();
    let world_size = peers.len() + 1;
    for (rank, stream) in peers {
        let (read, write) = tokio::io::split(stream);
        tokio::spawn(listen(rank, read, heartbeat.timeout, to.clone()));
        writers.push((rank, write));
    }
    let mut hub = Hub { writers, watched, world_size, questions: Vec::new(), asked: 0 };
    let mut beat = tokio::time::interval(heartbeat.interval);
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
