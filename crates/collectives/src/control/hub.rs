//! Rank 0's side of the control plane: hears all ranks, passes news on, and counts votes.

use std::collections::VecDeque;
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::io::WriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::frame::{self, Message};
use super::{
    ANSWERING, All, Command, Connection, Heard, Heartbeat, Notice, PARTING, Regrouping, Request, Stop,
    Watched, listen,
};
use crate::failure::Cause;

/// A question that rank 0 collects answers to.
struct Question {
    number: u64,
    /// The rank that asked; nobody's, if it was this one.
    from: Result<usize, Sender<All>>,
    answers: All,
    until: Instant,
}

/// A vote on the step after which all stop.
struct Vote {
    /// The rank that asked for it, and what for.
    from: usize,
    request: Request,
    /// The latest step that any rank has said to be in.
    after: Option<u64>,
    /// The ranks that have not answered.
    awaited: Vec<usize>,
}

/// A meeting of those who are left of a broken world, as far as it has come.
#[derive(Default)]
struct Regroup {
    /// The ranks that want it.
    asked: Vec<usize>,
    /// Rank 0's own port and whom to tell, once rank 0 wants it.
    own: Option<(u16, Sender<Regrouping>)>,
}

/// What goes to a rank, and who is to know, by the drop of its sender, that it has gone.
type Outgoing = (Message, Option<Sender<()>>);

/// Rank 0's watch over the others.
struct Hub {
    writers: Vec<(usize, UnboundedSender<Outgoing>)>,
    watched: Watched,
    world_size: usize,
    questions: Vec<Question>,
    asked: u64,
    vote: Option<Vote>,
    /// What was asked for during a vote, and by whom.
    requests: VecDeque<(usize, Request)>,
    regroup: Regroup,
}

/// Writes what a rank is told, in order. A rank that is stopped does not read, and holds up nobody's news but its own.
async fn write_to(mut rank: WriteHalf<Connection>, mut messages: UnboundedReceiver<Outgoing>) {
    while let Some((message, told)) = messages.recv().await {
        // Who cannot be told is noticed by its listener.
        if frame::write(&mut rank, &message).await.is_err() {
            return;
        }
        drop(told);
    }
}

/// Rank 0's watch: hears all ranks and passes news on.
pub(crate) async fn watch_as_hub(
    heartbeat: Heartbeat,
    peers: Vec<(usize, Connection)>,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
) {
    let (to, mut heard) = unbounded_channel::<Heard>();
    let mut writers = Vec::new();
    let world_size = peers.len() + 1;
    for (rank, stream) in peers {
        let (read, write) = tokio::io::split(stream);
        tokio::spawn(listen(rank, read, heartbeat.timeout, to.clone()));
        let (writer, messages) = unbounded_channel();
        tokio::spawn(write_to(write, messages));
        writers.push((rank, writer));
    }
    let (questions, regroup) = (Vec::new(), Regroup::default());
    let requests = VecDeque::new();
    let mut hub = Hub { writers, watched, world_size, questions, asked: 0, vote: None, requests, regroup };
    let mut beat = tokio::time::interval(heartbeat.interval);
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            Some((rank, message)) = heard.recv() => hub.hear(rank, message),
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => hub.tell(&cause.into(), Some(&told)),
                Some(Command::Ask(communicator, answer)) => hub.ask(communicator, Err(answer)),
                Some(Command::Post(name, payload)) => hub.watched.job.deliver(name, Notice { from: 0, payload }),
                Some(Command::Announce(name, payload)) => hub.tell(&Message::Notice { name, payload }, None),
                Some(Command::Stop(request)) => hub.request_stop(0, request),
                Some(Command::Regroup(port, answer)) => {
                    hub.regroup.own = port.map(|port| (port, answer));
                    hub.conclude_regroup();
                }
                Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                Some(Command::Leave) | None => {
                    // The others are held until there is a verdict; all answer at once.
                    let _ = timeout(PARTING, async {
                        while hub.vote.is_some() && let Some((rank, message)) = heard.recv().await {
                            hub.hear(rank, message);
                        }
                    }).await;
                    hub.tell(&Message::Bye, None);
                    // The end of each stream, and then its listener's end, says that the goodbye was read.
                    drop(hub);
                    drop(to);
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick() => hub.tell(&Message::Heartbeat, None),
            _ = look.tick(), if !hub.questions.is_empty() => hub.answer_due(),
        }
    }
}

impl Hub {
    fn hear(&mut self, rank: usize, message: Option<Message>) {
        let news = match message {
            Some(Message::Bye) => {
                self.writers.retain(|(known, _)| *known != rank);
                // It takes no further step, so it has no say in which is the last.
                self.count_vote(rank, None);
                return self.conclude_regroup();
            }
            Some(Message::Ask { communicator }) => return self.ask(communicator, Ok(rank)),
            Some(Message::Doing { question, doing }) => {
                if let Some(asked) = self.questions.iter_mut().find(|asked| asked.number == question) {
                    asked.answers[rank] = Some(doing);
                }
                return self.answer_due();
            }
            Some(Message::Notice { name, payload }) => {
                return self.watched.job.deliver(name, Notice { from: rank, payload });
            }
            Some(Message::RequestStop { reason, goes_on }) => {
                return self.request_stop(rank, Request { reason, goes_on });
            }
            Some(Message::InStep { step }) => return self.count_vote(rank, step),
            Some(Message::Regroup) => {
                self.regroup.asked.push(rank);
                return self.conclude_regroup();
            }
            Some(Message::Aborted { rank, reason }) => Cause::Aborted(rank, reason),
            Some(Message::Lost { rank }) => Cause::Lost(rank),
            Some(_) => return,
            None => {
                self.writers.retain(|(known, _)| *known != rank);
                // Who is held hears of the loss, and there is nothing left to agree on.
                self.vote = None;
                self.requests.clear();
                tracing::warn!(rank, "a rank is gone");
                Cause::Lost(rank)
            }
        };
        self.watched.failure.set(news.clone());
        self.tell(&news.into(), None);
        // Whoever waits for this one to come waits no longer.
        self.conclude_regroup();
    }

    /// Tells those who are left whom they will meet where, once all of them have asked.
    fn conclude_regroup(&mut self) {
        let Regroup { asked, own } = &mut self.regroup;
        let left = || self.writers.iter().map(|(rank, _)| *rank);
        if !left().all(|rank| asked.contains(&rank)) {
            return;
        }
        let Some((port, answer)) = own.take() else { return };
        asked.clear();
        let members: Vec<usize> = std::iter::once(0).chain(left()).collect();
        self.tell(&Message::Regrouped { members: members.clone(), port }, None);
        let _ = answer.send(Regrouping { members, port });
    }

    /// Tells all ranks; `told` is let go of once all were.
    fn tell(&self, message: &Message, told: Option<&Sender<()>>) {
        for (_, writer) in &self.writers {
            // A writer that has ended is that of a rank that is gone.
            let _ = writer.send((message.clone(), told.cloned()));
        }
    }

    /// Has all ranks vote on what one wants. Requests are met one after the other, until all have agreed to stop for good.
    fn request_stop(&mut self, from: usize, request: Request) {
        self.requests.push_back((from, request));
        self.begin_vote();
    }

    /// Asks all ranks which step they are in, and holds them at their next.
    fn begin_vote(&mut self) {
        if self.vote.is_some() || self.watched.job.stop().is_some() {
            return;
        }
        let Some((from, request)) = self.requests.pop_front() else { return };
        let (after, awaited) =
            (self.watched.job.vote(), self.writers.iter().map(|(rank, _)| *rank).collect());
        self.vote = Some(Vote { from, request, after, awaited });
        self.tell(&Message::Hold, None);
        self.conclude_vote();
    }

    fn count_vote(&mut self, rank: usize, step: Option<u64>) {
        if let Some(vote) = &mut self.vote {
            vote.awaited.retain(|awaited| *awaited != rank);
            vote.after = vote.after.max(step);
        }
        self.conclude_vote();
    }

    /// Tells the verdict once all have answered.
    fn conclude_vote(&mut self) {
        let Some(Vote { from: rank, request, after, .. }) = self.vote.take_if(|vote| vote.awaited.is_empty())
        else {
            return;
        };
        let Request { reason, goes_on } = request;
        self.tell(&Message::StopAfter { after, rank, reason: reason.clone(), goes_on }, None);
        self.watched.job.decide(Stop { after, rank, reason, goes_on });
        self.begin_vote();
    }

    /// Asks all ranks what they are doing.
    fn ask(&mut self, communicator: u32, from: Result<usize, Sender<All>>) {
        self.asked += 1;
        let mut answers = vec![None; self.world_size];
        answers[0] = Some(self.watched.recorder.doing(communicator));
        let until = Instant::now() + ANSWERING;
        self.questions.push(Question { number: self.asked, from, answers, until });
        self.tell(&Message::Tell { question: self.asked, communicator }, None);
        self.answer_due();
    }

    /// Answers the questions that all have answered, or whose time is up.
    fn answer_due(&mut self) {
        let now = Instant::now();
        let (due, open) = std::mem::take(&mut self.questions)
            .into_iter()
            .partition(|asked: &Question| asked.until <= now || !asked.answers.contains(&None));
        self.questions = open;
        for Question { from, answers, .. } in due {
            match from {
                Err(own) => drop(own.send(answers)),
                Ok(rank) => {
                    if let Some((_, writer)) = self.writers.iter().find(|(known, _)| *known == rank) {
                        let _ = writer.send((Message::All { doing: answers }, None));
                    }
                }
            }
        }
    }
}
