//! The control thread of every rank other than the coordinator.

use std::sync::Arc;

use crossbeam_channel::Sender;
use tokio::io::{AsyncWriteExt, WriteHalf};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::command::{Command, RejoinPlan, RejoinRequest, StopRequest};
use super::frame::{self, Message};
use super::job_state::{Notice, Stop};
use super::listener::{ConnectionEvent, Listener};
use super::state::{Activities, Connection, Heartbeat, Peer, RankState};
use super::succession::Succession;
use super::timeouts::PARTING;
use crate::failure::{Cause, Failure};

/// The reason why a member's control thread stopped.
pub(super) enum MemberEnd {
    /// This rank left.
    Left,
    /// The coordinator was lost, with the rejoin request that it has not answered, if there is one.
    CoordinatorLost(Option<RejoinRequest>),
}

/// A member's connection to the coordinator, and the answers that it waits for.
struct Member<'a> {
    heartbeat: Heartbeat,
    /// The coordinator's rank.
    coordinator: usize,
    writer: WriteHalf<Connection>,
    received: UnboundedReceiver<ConnectionEvent>,
    state: &'a RankState,
    succession: &'a mut Succession,
    /// False once the coordinator has left in good order.
    is_watching: bool,
    asking: Option<Sender<Activities>>,
    rejoin: Option<RejoinRequest>,
    /// The failure flag of the new world while its ranks connect.
    meeting: Option<Arc<Failure>>,
}

/// Runs a member's control thread until this rank leaves or the coordinator is lost. `rejoin` is a request that an earlier
/// coordinator has not answered.
pub(super) async fn run(
    heartbeat: Heartbeat,
    coordinator: Peer,
    commands: &mut UnboundedReceiver<Command>,
    state: &RankState,
    succession: &mut Succession,
    rejoin: Option<RejoinRequest>,
) -> MemberEnd {
    let Peer { rank: coordinator, connection } = coordinator;
    let (reader, writer) = tokio::io::split(connection);
    let (to, received) = unbounded_channel();
    let listener =
        Listener { own: succession.own, rank: coordinator, connection: 0, timeout: heartbeat.timeout };
    tokio::spawn(listener.run(reader, to));
    let mut member = Member {
        heartbeat,
        coordinator,
        writer,
        received,
        state,
        succession,
        is_watching: true,
        asking: None,
        rejoin,
        meeting: None,
    };
    member.run(commands).await
}

impl Member<'_> {
    async fn run(&mut self, commands: &mut UnboundedReceiver<Command>) -> MemberEnd {
        let mut beat = tokio::time::interval(self.heartbeat.interval);
        if self.rejoin.is_some() {
            self.send(&Message::Rejoin).await;
        }
        loop {
            tokio::select! {
                received = self.received.recv(), if self.is_watching => {
                    match received.map(|received| received.message) {
                        Some(Some(message)) => self.on_message(message).await,
                        Some(None) => return self.on_coordinator_lost(),
                        None => self.on_goodbye().await,
                    }
                }
                Some(peer) = self.succession.callers.recv() => self.succession.hold(peer),
                command = commands.recv() => match command {
                    Some(Command::Leave) | None => return self.leave().await,
                    Some(command) => self.on_command(command).await,
                },
                _ = beat.tick() => self.on_beat().await,
            }
        }
    }

    /// Sends a message to the coordinator. Failures show in the listener.
    async fn send(&mut self, message: &Message) {
        let _ = frame::write(&mut self.writer, message).await;
    }

    async fn on_message(&mut self, message: Message) {
        let job = &self.state.job;
        match message {
            Message::Lost { rank } => self.on_lost(rank),
            Message::Aborted { rank, reason } => {
                self.state.failure.set(Cause::Aborted(rank, reason));
            }
            Message::Tell { question, communicator } => {
                let doing = self.state.recorder.activity(communicator);
                self.send(&Message::Doing { question, doing }).await;
            }
            Message::All { doing } => {
                if let Some(asking) = self.asking.take() {
                    let _ = asking.send(doing);
                }
            }
            Message::Rejoined { members, port } => self.on_rejoined(members, port),
            Message::Apart(refusal) => {
                if let Some(request) = self.rejoin.take() {
                    let _ = request.answer.send(Err(refusal));
                }
            }
            Message::Notice { name, payload } => {
                job.deliver(name, Notice { from: self.coordinator, payload });
            }
            Message::Hold => {
                let step = job.vote();
                self.send(&Message::InStep { step }).await;
            }
            Message::StopAfter { after, rank, reason, goes_on } => {
                job.decide(Stop { after, rank, reason, goes_on });
            }
            Message::Departed { rank } => self.succession.departed.push(rank),
            Message::Bye => self.on_goodbye().await,
            _ => {}
        }
    }

    fn on_lost(&self, rank: usize) {
        self.state.failure.set(Cause::Lost(rank));
        if let Some(meeting) = &self.meeting {
            meeting.set(Cause::Lost(rank));
        }
    }

    fn on_coordinator_lost(&mut self) -> MemberEnd {
        self.on_lost(self.coordinator);
        MemberEnd::CoordinatorLost(self.rejoin.take())
    }

    fn on_rejoined(&mut self, members: Vec<usize>, port: u16) {
        // Members are ranks of the world in order; a coordinator sends nothing else.
        let is_valid = members.is_sorted_by(|a, b| a < b)
            && members.last().is_some_and(|last| *last < self.succession.world_size);
        if let Some(request) = self.rejoin.take_if(|_| is_valid) {
            let meeting = self.meeting.insert(Arc::default()).clone();
            let at = self.succession.peers.address(self.coordinator);
            let _ = request.answer.send(Ok(RejoinPlan { members, port, at, meeting }));
        }
    }

    /// The coordinator has left in good order.
    async fn on_goodbye(&mut self) {
        self.is_watching = false;
        self.rejoin = None;
        self.state.job.leave();
        // The coordinator waits for this end of the connection before it closes its own.
        let _ = self.writer.shutdown().await;
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Broken(cause, told) => {
                self.send(&cause.into()).await;
                drop(told);
            }
            Command::Ask(communicator, answer) => {
                self.asking = Some(answer);
                self.send(&Message::Ask { communicator }).await;
            }
            Command::Post(name, payload) => self.send(&Message::Notice { name, payload }).await,
            Command::Rejoin(request) => {
                // A coordinator that has left answers no request.
                self.rejoin = Some(request).filter(|_| self.is_watching);
                self.send(&Message::Rejoin).await;
            }
            Command::Stop(StopRequest { reason, goes_on }) => {
                self.send(&Message::RequestStop { reason, goes_on }).await;
            }
            Command::Depart(told) => {
                let rank = self.succession.own;
                self.send(&Message::Departed { rank }).await;
                drop(told);
            }
            Command::Spawn(task) => drop(tokio::spawn(task)),
            // Only the coordinator announces. Leaving ends the loop.
            Command::Announce(..) | Command::Leave => {}
        }
    }

    async fn leave(&mut self) -> MemberEnd {
        self.send(&Message::Bye).await;
        let _ = self.writer.shutdown().await;
        // Closing with unread messages would discard the goodbye on its way.
        let _ = timeout(PARTING, async { while self.received.recv().await.is_some() {} }).await;
        MemberEnd::Left
    }

    async fn on_beat(&mut self) {
        // By then this rank would have noticed the loss that the caller reports.
        let limit = self.heartbeat.timeout + 2 * self.heartbeat.interval;
        self.succession.send_away_after(limit, self.coordinator);
        if self.is_watching {
            self.send(&Message::Heartbeat).await;
        }
    }
}
