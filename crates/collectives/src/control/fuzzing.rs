//! Runs a rank's control thread against scripted messages of other ranks, for the fuzzer of this workspace.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::yield_now;

use super::command::{Command, RejoinPlan, RejoinRefusal, RejoinRequest, StopRequest};
use super::frame::{self, Message};
use super::{Connection, Dialing, Heartbeat, Peer, PeerDirectory, RankState, Role, Succession};
use crate::failure::Cause;

/// The number of ranks.
const WORLD: usize = 4;

/// The rank that is the coordinator at first.
const COORDINATOR: usize = 0;

/// The buffer size of a connection in bytes. It exceeds any input, so a rank that does not read delays no other.
const ROOM: usize = 4 << 20;

/// The heartbeat interval and timeout, too long to expire.
const HOUR: Duration = Duration::from_secs(3600);

/// The number of yields after which every task is idle.
const TURNS: usize = 8;

/// An action of a rank.
enum ScriptedEvent {
    /// The rank sends a message. The tested rank runs the command that sends it.
    Message(Message),
    /// Its connection breaks.
    Disconnect,
    /// It has lost the coordinator and connects to the tested rank.
    Reconnect,
}

/// The events of all ranks around the tested one.
struct Script {
    /// The tested rank.
    own: usize,
    /// Ranks whose processes have ended.
    ended: Vec<usize>,
    /// The events in order, with their ranks.
    events: Vec<(usize, ScriptedEvent)>,
}

fn rank(value: &Value) -> Option<usize> {
    value.as_u64().map(|rank| (rank % WORLD as u64) as usize)
}

impl Script {
    /// Parses a script; malformed parts are left out. A malformed message breaks the connection, like malformed bytes.
    fn of(value: &Value) -> Self {
        let list =
            |name: &str| value.get(name).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let event = |value: &Value| match value.as_str() {
            Some("Knock") => ScriptedEvent::Reconnect,
            _ => serde_json::from_value(value.clone())
                .map_or(ScriptedEvent::Disconnect, ScriptedEvent::Message),
        };
        let parse = |item: &Value| Some((rank(item.get(0)?)?, event(item.get(1)?)));
        Self {
            own: value.get("own").and_then(rank).unwrap_or(COORDINATOR),
            ended: list("ended").iter().filter_map(rank).collect(),
            events: list("said").iter().filter_map(parse).collect(),
        }
    }

    /// Takes the messages of lower ranks, which the tested rank receives when it calls them. Each answers once.
    fn take_calls(&mut self) -> BTreeMap<usize, Vec<Message>> {
        let mut calls: BTreeMap<usize, Vec<Message>> = BTreeMap::new();
        let mut rest = Vec::new();
        for (rank, event) in std::mem::take(&mut self.events) {
            match event {
                ScriptedEvent::Message(message) if COORDINATOR < rank && rank < self.own => {
                    calls.entry(rank).or_default().push(message);
                }
                event => rest.push((rank, event)),
            }
        }
        self.events = rest;
        calls
    }
}

/// The other ranks, as the tested rank calls them.
struct ScriptedPeers {
    ended: Vec<usize>,
    messages: Mutex<BTreeMap<usize, Vec<Message>>>,
}

impl PeerDirectory for ScriptedPeers {
    fn call(&self, rank: usize) -> Dialing {
        let messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner).remove(&rank);
        Box::pin(async move {
            let (here, mut there) = duplex(ROOM);
            for message in messages.ok_or("no rank answers")? {
                frame::write(&mut there, &message).await.map_err(|error| error.to_string())?;
            }
            Ok(Box::new(here) as Connection)
        })
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.ended.contains(&rank)
    }

    fn address(&self, _: usize) -> IpAddr {
        Ipv4Addr::LOCALHOST.into()
    }
}

/// The answer to a rank's rejoin request.
type RejoinAnswer = Receiver<Result<RejoinPlan, RejoinRefusal>>;

/// Returns the command that makes the rank send this message.
fn command(message: Message, answers: &mut Vec<RejoinAnswer>) -> Option<Command> {
    Some(match message {
        Message::Rejoin => {
            let (answer, answered) = bounded(1);
            answers.push(answered);
            Command::Rejoin(RejoinRequest { port: 7, answer })
        }
        Message::Ask { communicator } => Command::Ask(communicator, bounded(1).0),
        Message::Notice { name, payload } => Command::Announce(name, payload),
        Message::RequestStop { reason, goes_on } => Command::Stop(StopRequest { reason, goes_on }),
        Message::Departed { .. } => Command::Depart(bounded(0).0),
        Message::Lost { rank } => Command::Broken(Cause::Lost(rank), bounded(0).0),
        Message::Aborted { rank, reason } => Command::Broken(Cause::Aborted(rank, reason), bounded(0).0),
        _ => return None,
    })
}

async fn settle() {
    for _ in 0..TURNS {
        yield_now().await;
    }
}

/// Checks that members are ranks of the world, each once and in order.
fn check(members: &[usize]) {
    assert!(members.iter().all(|member| *member < WORLD), "{members:?} are to meet, of {WORLD} ranks");
    assert!(members.is_sorted_by(|a, b| a < b), "{members:?} are to meet, which is no order");
}

/// Plays the other ranks: sends the script's messages, hangs up, and reads the rank's messages.
async fn others(
    Script { own, events, .. }: Script,
    mut ends: BTreeMap<usize, DuplexStream>,
    (commands, callers): (UnboundedSender<Command>, UnboundedSender<Peer>),
) {
    let (mut answers, mut over) = (Vec::new(), Vec::new());
    settle().await;
    for (rank, event) in events {
        match event {
            ScriptedEvent::Message(message) if rank == own => {
                // The control thread may have ended.
                let _ = command(message, &mut answers).map(|command| commands.send(command));
            }
            ScriptedEvent::Message(message) => {
                if let Some(end) = ends.get_mut(&rank) {
                    let _ = frame::write(end, &message).await;
                }
            }
            ScriptedEvent::Disconnect => {
                if let Some(mut end) = ends.remove(&rank) {
                    let _ = end.shutdown().await;
                    over.push(end);
                }
            }
            ScriptedEvent::Reconnect if rank != own => {
                let (here, there) = duplex(ROOM);
                if let Some(mut end) = ends.insert(rank, there) {
                    let _ = end.shutdown().await;
                    over.push(end);
                }
                let _ = callers.send(Peer { rank, connection: Box::new(here) });
            }
            ScriptedEvent::Reconnect => {}
        }
        settle().await;
    }
    for mut end in ends.into_values() {
        let _ = end.shutdown().await;
        over.push(end);
    }
    settle().await;
    drop((commands, callers));
    for mut end in over {
        let mut heard = Vec::new();
        let _ = end.read_to_end(&mut heard).await;
        let mut rest = heard.as_slice();
        while !rest.is_empty() {
            match frame::read(&mut rest).await {
                Ok(Message::Rejoined { members, .. }) => check(&members),
                Ok(_) => {}
                Err(error) => panic!("a rank sent a malformed message: {error}"),
            }
        }
    }
    for answered in answers {
        if let Ok(Ok(RejoinPlan { members, .. })) = answered.try_recv() {
            check(&members);
        }
    }
}

/// Runs the control thread of one of four ranks against a script in JSON. The rank is the coordinator or a member, and
/// may have to follow or replace a lost coordinator.
pub(crate) async fn watched(bytes: &[u8]) -> Result<(), serde_json::Error> {
    let mut script = Script::of(&serde_json::from_slice(bytes)?);
    let own = script.own;
    let peers = ScriptedPeers { ended: script.ended.clone(), messages: Mutex::new(script.take_calls()) };
    let (commands, receiver) = unbounded_channel();
    let (calling, callers) = unbounded_channel();
    let succession = Succession::new(own, WORLD, Arc::new(peers), callers);
    let mut ends = BTreeMap::new();
    let mut connection = |rank| -> Connection {
        let (here, there) = duplex(ROOM);
        ends.insert(rank, there);
        Box::new(here)
    };
    let role = match own {
        COORDINATOR => {
            Role::Coordinator((1..WORLD).map(|rank| Peer { rank, connection: connection(rank) }).collect())
        }
        _ => Role::Member(connection(COORDINATOR)),
    };
    let heartbeat = Heartbeat { interval: HOUR, timeout: HOUR };
    let run = super::run(heartbeat, role, receiver, RankState::default(), succession);
    tokio::join!(run, others(script, ends, (commands, calling)));
    Ok(())
}
