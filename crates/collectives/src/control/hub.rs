//! The hub's side of the control plane: hears all ranks, passes news on, and counts votes. The hub is rank 0, and where that is
//! lost the rank that has taken over.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crossbeam_channel::Sender;
use tokio::io::WriteHalf;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{Instant, timeout};

use super::frame::{self, Message};
use super::reunion::{Agreed, Reunion};
use super::succession::{Caller, Succession, send_away};
use super::{
    ANSWERING, All, Command, Connection, Heard, Heartbeat, Notice, PARTING, Regrouping, Request, Stop,
    Wanted, Watched, listen,
};
use crate::failure::Cause;

/// A question that the hub collects answers to.
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

/// What goes to a rank, and who is to know, by the drop of its sender, that it has gone.
type Outgoing = (Message, Option<Sender<()>>);

/// The hub's watch over the others.
struct Hub {
    writers: Vec<(usize, UnboundedSender<Outgoing>)>,
    /// By rank, the number of the connection by which it was let in last; ranks that never were have none.
    lines: BTreeMap<usize, u64>,
    watched: Watched,
    succession: Succession,
    /// Whether it has followed one that was lost.
    has_taken_over: bool,
    heartbeat: Heartbeat,
    /// Where listeners put what they hear.
    to: UnboundedSender<Heard>,
    questions: Vec<Question>,
    asked: u64,
    vote: Option<Vote>,
    /// What was asked for during a vote, and by whom.
    requests: VecDeque<(usize, Request)>,
    reunion: Reunion,
}

/// How a rank has become the hub.
pub(super) enum Became {
    /// It is rank 0, whom all others have met.
    First(Vec<(usize, Connection)>),
    /// It has taken over, and these have come; it may have wanted to meet those who are left before.
    Successor(Vec<Caller>, Option<Wanted>),
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

/// The hub's watch: hears all ranks and passes news on, until it leaves.
pub(super) async fn watch(
    heartbeat: Heartbeat,
    became: Became,
    mut commands: UnboundedReceiver<Command>,
    watched: Watched,
    succession: Succession,
) {
    let (to, mut heard) = unbounded_channel::<Heard>();
    let mut hub = Hub::new(heartbeat, became, watched, succession, to);
    let mut beat = tokio::time::interval(heartbeat.interval);
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            Some((rank, line, message)) = heard.recv() => {
                // What an earlier connection of a rank still says, it is over.
                if hub.lines.get(&rank) == Some(&line) {
                    hub.hear(rank, message);
                }
            }
            Some(caller) = hub.succession.callers.recv() => hub.receive(caller),
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => hub.tell(&cause.into(), Some(&told)),
                Some(Command::Ask(communicator, answer)) => hub.ask(communicator, Err(answer)),
                Some(Command::Post(name, payload)) => {
                    let from = hub.succession.own;
                    hub.watched.job.deliver(name, Notice { from, payload });
                }
                Some(Command::Announce(name, payload)) => hub.tell(&Message::Notice { name, payload }, None),
                Some(Command::Stop(request)) => hub.request_stop(hub.succession.own, request),
                Some(Command::Regroup(own)) => {
                    hub.reunion.want(own);
                    hub.conclude_reunion();
                }
                Some(Command::Depart(told)) => {
                    hub.tell(&Message::Departed { rank: hub.succession.own }, Some(&told));
                }
                Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                Some(Command::Leave) | None => {
                    // The others are held until there is a verdict; all answer at once.
                    let _ = timeout(PARTING, async {
                        while hub.vote.is_some() && let Some((rank, _, message)) = heard.recv().await {
                            hub.hear(rank, message);
                        }
                    }).await;
                    hub.tell(&Message::Bye, None);
                    // The end of each stream, and then its listener's end, says that the goodbye was read.
                    drop(hub);
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return;
                }
            },
            _ = beat.tick() => hub.tell(&Message::Heartbeat, None),
            _ = look.tick(), if !hub.questions.is_empty() || hub.reunion.is_open() => {
                hub.answer_due();
                hub.conclude_reunion();
            }
        }
    }
}

impl Hub {
    fn new(
        heartbeat: Heartbeat,
        became: Became,
        watched: Watched,
        succession: Succession,
        to: UnboundedSender<Heard>,
    ) -> Self {
        let (own, world_size) = (succession.own, succession.world_size);
        let has_taken_over = matches!(became, Became::Successor(..));
        // Those below this rank would have let it in. The others notice later by at most the time that silence may last, and
        // have knocked at the same doors.
        let coming = if has_taken_over { (own + 1..world_size).collect() } else { Vec::new() };
        let mut hub = Self {
            writers: Vec::new(),
            lines: BTreeMap::new(),
            watched,
            succession,
            has_taken_over,
            heartbeat,
            to,
            questions: Vec::new(),
            asked: 0,
            vote: None,
            requests: VecDeque::new(),
            reunion: Reunion::new(own, world_size, coming, 2 * heartbeat.timeout),
        };
        match became {
            Became::First(peers) => peers.into_iter().for_each(|(rank, stream)| hub.add(rank, stream)),
            Became::Successor(callers, wanted) => {
                callers.into_iter().for_each(|caller| hub.receive(caller));
                if let Some(wanted) = wanted {
                    hub.reunion.want(wanted);
                    hub.conclude_reunion();
                }
            }
        }
        hub
    }

    /// Hears and tells one more rank from now on.
    fn add(&mut self, rank: usize, stream: Connection) {
        let (read, write) = tokio::io::split(stream);
        let own = self.succession.own;
        let line = self.lines.entry(rank).and_modify(|line| *line += 1).or_insert(0);
        tokio::spawn(listen((own, rank, *line), read, self.heartbeat.timeout, self.to.clone()));
        let (writer, messages) = unbounded_channel();
        tokio::spawn(write_to(write, messages));
        self.writers.push((rank, writer));
    }

    /// Lets a rank in that has lost its hub: one that is expected by this one, which has taken over, or one that has lost this one while
    /// nobody has agreed to go on without it, as where a connection was cut and not a host.
    fn receive(&mut self, (rank, stream): Caller) {
        let own = self.succession.own;
        let returns = self.lines.contains_key(&rank) && !self.reunion.has_met();
        if !self.reunion.takes(rank) && !returns {
            let has = if self.has_taken_over { "has taken over" } else { "lives" };
            let reason = format!("rank {own} {has}, and those who came in time go on without it");
            return send_away((rank, stream), reason);
        }
        if self.writers.iter().any(|(known, _)| *known == rank) {
            // It has noticed first that the connection between the two is gone.
            let news = self.lose(rank);
            self.watched.failure.set(news.clone());
            self.tell(&news.into(), None);
        }
        self.add(rank, stream);
        if let Some((_, writer)) = self.writers.last() {
            let _ = writer.send((Message::Admitted, None));
        }
        self.conclude_reunion();
    }

    fn hear(&mut self, rank: usize, message: Option<Message>) {
        let news = match message {
            Some(Message::Bye) => {
                self.writers.retain(|(known, _)| *known != rank);
                // It takes no further step, so it has no say in which is the last.
                self.count_vote(rank, None);
                return self.conclude_reunion();
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
                self.reunion.ask(rank);
                return self.conclude_reunion();
            }
            Some(Message::Departed { .. }) => {
                // Of itself alone a rank says that.
                self.succession.departed.push(rank);
                return self.tell(&Message::Departed { rank }, None);
            }
            Some(Message::Aborted { rank: named, reason }) => Cause::Aborted(self.known(named, rank), reason),
            Some(Message::Lost { rank: named }) => Cause::Lost(self.known(named, rank)),
            Some(_) => return,
            None => self.lose(rank),
        };
        self.watched.failure.set(news.clone());
        self.tell(&news.into(), None);
        // Whoever waits for this one to come waits no longer.
        self.conclude_reunion();
    }

    /// A rank's connection is gone: nothing more goes to it.
    fn lose(&mut self, rank: usize) -> Cause {
        self.writers.retain(|(known, _)| *known != rank);
        // Who is held hears of the loss, and there is nothing left to agree on.
        self.vote = None;
        self.requests.clear();
        self.reunion.lose(rank);
        tracing::warn!(rank, "a rank is gone");
        Cause::Lost(rank)
    }

    /// The rank that another one names, or, as there is none of that number, that one.
    fn known(&self, named: usize, by: usize) -> usize {
        if named < self.succession.world_size { named } else { by }
    }

    /// Tells those who are left whom they will meet where, or that they will not, once all of them have asked.
    fn conclude_reunion(&mut self) {
        let others: Vec<usize> = self.writers.iter().map(|(rank, _)| *rank).collect();
        let (doors, departed) = (self.succession.doors.clone(), &self.succession.departed);
        let has_ended = |rank| departed.contains(&rank) || doors.has_ended(rank);
        let concluded = self.reunion.conclude(&others, has_ended);
        let Some((agreed, Wanted { port, answer })) = concluded else { return };
        let answered = match agreed {
            Agreed::Meet(members) => {
                self.tell(&Message::Regrouped { members: members.clone(), port }, None);
                let at = doors.address(self.succession.own);
                Ok(Regrouping { members, port, at, meeting: self.reunion.meet() })
            }
            Agreed::Apart(unmet) => {
                self.tell(&Message::Apart(unmet.clone()), None);
                Err(unmet)
            }
        };
        let _ = answer.send(answered);
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
        let mut answers = vec![None; self.succession.world_size];
        answers[self.succession.own] = Some(self.watched.recorder.doing(communicator));
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
