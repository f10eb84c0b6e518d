//! The control thread of the coordinator: rank 0, or the rank that took over from it. It receives the messages of all
//! ranks, forwards them, and counts votes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::io::WriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::command::{Command, RejoinPlan, RejoinRequest, StopRequest};
use super::frame::{self, Message};
use super::job_state::{Notice, Stop};
use super::listener::{ConnectionEvent, Listener};
use super::rejoin::{Rejoin, RejoinDecision};
use super::state::{Activities, Connection, Heartbeat, Peer, RankState};
use super::succession::{Succession, send_away};
use super::timeouts::{ANSWERING, PARTING};
use crate::failure::Cause;

/// The time between two looks for questions and rejoins that are due.
const LOOK: Duration = Duration::from_millis(100);

/// The rank that asked for the activity of all ranks.
enum Requester {
    Rank(usize),
    /// This rank's own program.
    Program(Sender<Activities>),
}

/// A question to all ranks whose answers are collected.
struct Question {
    number: u64,
    from: Requester,
    answers: Activities,
    until: Instant,
}

/// A vote on the step after which all ranks stop.
struct Vote {
    request: QueuedRequest,
    /// The latest step that any rank has named.
    after: Option<u64>,
    /// The ranks that have not answered.
    awaited: Vec<usize>,
}

/// A stop request with the rank that made it.
struct QueuedRequest {
    from: usize,
    request: StopRequest,
}

/// A message to a rank. Dropping `told` reports that it was written.
struct Outgoing {
    message: Message,
    told: Option<Sender<()>>,
}

/// The queue of messages to a rank.
struct Writer {
    rank: usize,
    messages: UnboundedSender<Outgoing>,
}

/// The coordinator's state.
struct Coordinator {
    writers: Vec<Writer>,
    /// The number of the newest connection of each rank that was ever accepted.
    connections: BTreeMap<usize, u64>,
    state: RankState,
    succession: Succession,
    /// True if this rank followed a lost coordinator.
    has_taken_over: bool,
    heartbeat: Heartbeat,
    /// The queue that listeners write to.
    to: UnboundedSender<ConnectionEvent>,
    questions: Vec<Question>,
    /// The number of questions so far.
    asked: u64,
    vote: Option<Vote>,
    /// Requests that came during a vote.
    requests: VecDeque<QueuedRequest>,
    rejoin: Rejoin,
}

/// The way in which a rank became the coordinator.
pub(super) enum Origin {
    /// It is rank 0 and has met all others.
    First(Vec<Peer>),
    /// It took over. It has the connections of ranks that called it, and its own open request.
    Successor(Vec<Peer>, Option<RejoinRequest>),
}

/// Writes the messages to a rank in order. A stopped rank, which does not read, delays only its own messages.
async fn write_to(mut rank: WriteHalf<Connection>, mut messages: UnboundedReceiver<Outgoing>) {
    while let Some(Outgoing { message, told }) = messages.recv().await {
        // The listener notices a rank that cannot be reached.
        if frame::write(&mut rank, &message).await.is_err() {
            return;
        }
        drop(told);
    }
}

/// Runs the coordinator's control thread until this rank leaves.
pub(super) async fn run(
    heartbeat: Heartbeat,
    origin: Origin,
    mut commands: UnboundedReceiver<Command>,
    state: RankState,
    succession: Succession,
) {
    let (to, mut received) = unbounded_channel::<ConnectionEvent>();
    let mut coordinator = Coordinator::new(heartbeat, origin, state, succession, to);
    let mut beat = tokio::time::interval(heartbeat.interval);
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            Some(received) = received.recv() => coordinator.on_received(received),
            Some(peer) = coordinator.succession.callers.recv() => coordinator.on_call(peer),
            command = commands.recv() => match command {
                Some(Command::Leave) | None => return coordinator.leave(received).await,
                Some(command) => coordinator.on_command(command),
            },
            _ = beat.tick() => coordinator.tell(&Message::Heartbeat, None),
            _ = look.tick(), if coordinator.is_awaiting() => coordinator.on_look(),
        }
    }
}

impl Coordinator {
    fn new(
        heartbeat: Heartbeat,
        origin: Origin,
        state: RankState,
        succession: Succession,
        to: UnboundedSender<ConnectionEvent>,
    ) -> Self {
        let (own, world_size) = (succession.own, succession.world_size);
        let has_taken_over = matches!(origin, Origin::Successor(..));
        // Lower ranks would have accepted this one. Higher ranks notice the loss later by at most the heartbeat timeout, and have
        // called the same ranks.
        let awaited = if has_taken_over { (own + 1..world_size).collect() } else { Vec::new() };
        let mut coordinator = Self {
            writers: Vec::new(),
            connections: BTreeMap::new(),
            state,
            succession,
            has_taken_over,
            heartbeat,
            to,
            questions: Vec::new(),
            asked: 0,
            vote: None,
            requests: VecDeque::new(),
            rejoin: Rejoin::new(own, world_size, awaited, 2 * heartbeat.timeout),
        };
        match origin {
            Origin::First(peers) => peers.into_iter().for_each(|peer| coordinator.add(peer)),
            Origin::Successor(peers, request) => {
                peers.into_iter().for_each(|peer| coordinator.on_call(peer));
                if let Some(request) = request {
                    coordinator.rejoin.request(request);
                    coordinator.conclude_rejoin();
                }
            }
        }
        coordinator
    }

    /// Listens to one more rank and sends it messages from now on.
    fn add(&mut self, peer: Peer) {
        let Peer { rank, connection } = peer;
        let (reader, write) = tokio::io::split(connection);
        let number = self.connections.entry(rank).and_modify(|number| *number += 1).or_insert(0);
        let listener =
            Listener { own: self.succession.own, rank, connection: *number, timeout: self.heartbeat.timeout };
        tokio::spawn(listener.run(reader, self.to.clone()));
        let (messages, queue) = unbounded_channel();
        tokio::spawn(write_to(write, queue));
        self.writers.push(Writer { rank, messages });
    }

    /// Accepts or refuses a rank that has lost its coordinator. Accepted are ranks that this one awaits after it took over, and ranks
    /// whose connection to this one was cut, as long as no new world was agreed on without them.
    fn on_call(&mut self, peer: Peer) {
        let (own, rank) = (self.succession.own, peer.rank);
        let returns = self.connections.contains_key(&rank) && !self.rejoin.has_members();
        if !self.rejoin.accept(rank) && !returns {
            let has = if self.has_taken_over { "has taken over" } else { "lives" };
            let reason = format!("rank {own} {has}, and the ranks that came in time go on without it");
            return send_away(peer, reason);
        }
        if self.writers.iter().any(|writer| writer.rank == rank) {
            // The other side has noticed first that the connection between the two is gone.
            let cause = self.lose(rank);
            self.break_world(cause);
        }
        self.add(peer);
        if let Some(writer) = self.writers.last() {
            let _ = writer.messages.send(Outgoing { message: Message::Admitted, told: None });
        }
        self.conclude_rejoin();
    }

    fn on_received(&mut self, received: ConnectionEvent) {
        let ConnectionEvent { rank, connection, message } = received;
        // Messages of an earlier connection of a rank no longer count.
        if self.connections.get(&rank) != Some(&connection) {
            return;
        }
        self.handle(rank, message);
    }

    /// Handles a message of a rank, or the end of its connection.
    fn handle(&mut self, rank: usize, message: Option<Message>) {
        match message {
            Some(message) => self.on_message(rank, message),
            None => {
                let cause = self.lose(rank);
                self.on_broken(cause);
            }
        }
    }

    fn on_message(&mut self, rank: usize, message: Message) {
        match message {
            Message::Bye => self.on_goodbye(rank),
            Message::Ask { communicator } => self.ask(communicator, Requester::Rank(rank)),
            Message::Doing { question, doing } => {
                if let Some(asked) = self.questions.iter_mut().find(|asked| asked.number == question) {
                    asked.answers[rank] = Some(doing);
                }
                self.answer_due();
            }
            Message::Notice { name, payload } => {
                self.state.job.deliver(name, Notice { from: rank, payload });
            }
            Message::RequestStop { reason, goes_on } => {
                self.request_stop(rank, StopRequest { reason, goes_on });
            }
            Message::InStep { step } => self.count_vote(rank, step),
            Message::Rejoin => {
                self.rejoin.ask(rank);
                self.conclude_rejoin();
            }
            Message::Departed { .. } => {
                // A rank can depart itself only, so the number in the message does not count.
                self.succession.departed.push(rank);
                self.tell(&Message::Departed { rank }, None);
            }
            Message::Aborted { rank: named, reason } => {
                self.on_broken(Cause::Aborted(self.existing(named, rank), reason));
            }
            Message::Lost { rank: named } => self.on_broken(Cause::Lost(self.existing(named, rank))),
            _ => {}
        }
    }

    fn on_goodbye(&mut self, rank: usize) {
        self.writers.retain(|writer| writer.rank != rank);
        // It takes no further step, so it has no vote.
        self.count_vote(rank, None);
        self.conclude_rejoin();
    }

    fn on_broken(&mut self, cause: Cause) {
        self.break_world(cause);
        // The ranks that waited for this one to rejoin wait no longer.
        self.conclude_rejoin();
    }

    fn break_world(&mut self, cause: Cause) {
        self.state.failure.set(cause.clone());
        self.tell(&cause.into(), None);
    }

    /// Forgets a rank whose connection is gone.
    fn lose(&mut self, rank: usize) -> Cause {
        self.writers.retain(|writer| writer.rank != rank);
        // Waiting ranks are told of the loss, and the vote is void.
        self.vote = None;
        self.requests.clear();
        self.rejoin.lose(rank);
        tracing::warn!(rank, "lost a rank");
        Cause::Lost(rank)
    }

    /// Returns the rank that a message names, or its sender if no such rank exists.
    fn existing(&self, named: usize, sender: usize) -> usize {
        if named < self.succession.world_size { named } else { sender }
    }

    fn on_command(&mut self, command: Command) {
        let own = self.succession.own;
        match command {
            Command::Broken(cause, told) => self.tell(&cause.into(), Some(&told)),
            Command::Ask(communicator, answer) => self.ask(communicator, Requester::Program(answer)),
            Command::Post(name, payload) => self.state.job.deliver(name, Notice { from: own, payload }),
            Command::Announce(name, payload) => self.tell(&Message::Notice { name, payload }, None),
            Command::Stop(request) => self.request_stop(own, request),
            Command::Rejoin(request) => {
                self.rejoin.request(request);
                self.conclude_rejoin();
            }
            Command::Depart(told) => self.tell(&Message::Departed { rank: own }, Some(&told)),
            Command::Spawn(task) => drop(tokio::spawn(task)),
            // Ends the loop.
            Command::Leave => {}
        }
    }

    /// Leaves in good order, after the vote that is under way.
    async fn leave(mut self, mut received: UnboundedReceiver<ConnectionEvent>) {
        // The other ranks wait for the verdict. All answer at once.
        let _ = timeout(PARTING, async {
            while self.vote.is_some()
                && let Some(ConnectionEvent { rank, message, .. }) = received.recv().await
            {
                self.handle(rank, message);
            }
        })
        .await;
        self.tell(&Message::Bye, None);
        // The end of each listener shows that its rank has read the goodbye.
        drop(self);
        let _ = timeout(PARTING, async { while received.recv().await.is_some() {} }).await;
    }

    /// True if questions or a rejoin wait for something that needs no message.
    fn is_awaiting(&self) -> bool {
        !self.questions.is_empty() || self.rejoin.is_open()
    }

    fn on_look(&mut self) {
        self.answer_due();
        self.conclude_rejoin();
    }

    /// Sends the decision about a new world once all surviving ranks have asked.
    fn conclude_rejoin(&mut self) {
        let others: Vec<usize> = self.writers.iter().map(|writer| writer.rank).collect();
        let (peers, departed) = (self.succession.peers.clone(), &self.succession.departed);
        let has_ended = |rank| departed.contains(&rank) || peers.has_ended(rank);
        let decided = self.rejoin.decide(&others, has_ended);
        let Some((decision, RejoinRequest { port, answer })) = decided else { return };
        let answered = match decision {
            RejoinDecision::Form(members) => {
                self.tell(&Message::Rejoined { members: members.clone(), port }, None);
                let at = peers.address(self.succession.own);
                Ok(RejoinPlan { members, port, at, meeting: self.rejoin.begin_meeting() })
            }
            RejoinDecision::Refuse(refusal) => {
                self.tell(&Message::Apart(refusal.clone()), None);
                Err(refusal)
            }
        };
        let _ = answer.send(answered);
    }

    /// Queues a message to all ranks. `told` is dropped once it was written to all.
    fn tell(&self, message: &Message, told: Option<&Sender<()>>) {
        for writer in &self.writers {
            // Writers of lost ranks have ended.
            let _ = writer.messages.send(Outgoing { message: message.clone(), told: told.cloned() });
        }
    }

    /// Queues a stop request. Requests are voted on in order, until all ranks have agreed to stop for good.
    fn request_stop(&mut self, from: usize, request: StopRequest) {
        self.requests.push_back(QueuedRequest { from, request });
        self.begin_vote();
    }

    /// Asks all ranks for their step and holds them at the next one.
    fn begin_vote(&mut self) {
        if self.vote.is_some() || self.state.job.stop().is_some() {
            return;
        }
        let Some(request) = self.requests.pop_front() else { return };
        let after = self.state.job.vote();
        let awaited = self.writers.iter().map(|writer| writer.rank).collect();
        self.vote = Some(Vote { request, after, awaited });
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

    /// Sends the verdict once all ranks have answered.
    fn conclude_vote(&mut self) {
        let Some(Vote { request, after, .. }) = self.vote.take_if(|vote| vote.awaited.is_empty()) else {
            return;
        };
        let QueuedRequest { from: rank, request: StopRequest { reason, goes_on } } = request;
        self.tell(&Message::StopAfter { after, rank, reason: reason.clone(), goes_on }, None);
        self.state.job.decide(Stop { after, rank, reason, goes_on });
        self.begin_vote();
    }

    /// Asks all ranks for their activity.
    fn ask(&mut self, communicator: u32, from: Requester) {
        self.asked += 1;
        let mut answers = vec![None; self.succession.world_size];
        answers[self.succession.own] = Some(self.state.recorder.activity(communicator));
        let until = Instant::now() + ANSWERING;
        self.questions.push(Question { number: self.asked, from, answers, until });
        self.tell(&Message::Tell { question: self.asked, communicator }, None);
        self.answer_due();
    }

    /// Answers questions that are complete or whose time is up.
    fn answer_due(&mut self) {
        let now = Instant::now();
        let (due, open) = std::mem::take(&mut self.questions)
            .into_iter()
            .partition(|asked: &Question| asked.until <= now || !asked.answers.contains(&None));
        self.questions = open;
        for Question { from, answers, .. } in due {
            match from {
                Requester::Program(answer) => drop(answer.send(answers)),
                Requester::Rank(rank) => {
                    if let Some(writer) = self.writers.iter().find(|writer| writer.rank == rank) {
                        let message = Message::All { doing: answers };
                        let _ = writer.messages.send(Outgoing { message, told: None });
                    }
                }
            }
        }
    }
}
