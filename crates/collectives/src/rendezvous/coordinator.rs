//! Rank 0's side of the rendezvous: accepts the registrations of all ranks and sends them the table.

use std::net::{SocketAddr, TcpListener};

use tokio::net::TcpStream;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout, timeout_at};

use super::Waits;
use super::host::this_process;
use super::introductions::{Introductions, PAUSE, RefusalLog, most_introductions};
use super::table::{RankEntry, RankTable};
use super::timeouts::INTRODUCTION;
use crate::config::WorldConfig;
use crate::control::frame::{self, Message, PROTOCOL};
use crate::control::{Connection, MeetingPhase, Peer};
use crate::error::{CommError, Result};
use crate::security::{self, Credentials, Hello, Purpose};

/// The longest name of a host; more than any system allows.
const LONGEST_NAME: usize = 255;

/// The most introductions at a time.
const MOST_INTRODUCTIONS: usize = 4096;

/// Accepts registrations until all ranks are there; returns the table and the connections in the order of ranks.
pub(super) async fn host(
    config: &WorldConfig,
    listener: TcpListener,
    data: SocketAddr,
    waits: Waits<'_>,
) -> Result<(RankTable, Vec<Peer>)> {
    let io = |error: std::io::Error| config.rendezvous_error(error.to_string());
    listener.set_nonblocking(true).map_err(io)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(io)?;
    let deadline = Instant::now() + config.timeouts.connect;
    let mut registration = Registration::new(config, data);
    while !registration.is_complete() {
        waits.progress.set(MeetingPhase::Missing(registration.missing()));
        let has_room = registration.places.make_room();
        tokio::select! {
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, from)) => registration.introduce(stream, from),
                Err(error) => {
                    registration.refusals.add(&"an unknown address", &format!("accepting failed: {error}"));
                    tokio::time::sleep(PAUSE).await;
                }
            },
            () = tokio::time::sleep(PAUSE), if !has_room => {}
            Some(introduced) = registration.introductions.join_next() => {
                registration.on_introduced(introduced).await;
            }
            () = waits.cancelled.notified() => {
                let (missing, all) = (registration.missing(), config.world_size);
                return Err(config.cancelled(format!("while ranks {missing:?} of {all} were missing")));
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(CommError::Missing {
                    address: config.meeting_text(),
                    seconds: config.timeouts.connect.as_secs(),
                    missing: registration.missing(),
                    world_size: config.world_size,
                });
            }
        }
    }
    waits.progress.set(MeetingPhase::Registered);
    registration.finish(deadline).await
}

/// A caller that has shaken hands and sent its first message.
struct Introduction {
    hello: Hello,
    connection: Connection,
    message: Message,
}

/// The outcome of an introduction: `None` if the caller was too slow.
struct Introduced {
    from: SocketAddr,
    outcome: Option<Result<Introduction, String>>,
}

/// The ranks that have registered so far.
struct Registration<'a> {
    config: &'a WorldConfig,
    entries: Vec<Option<RankEntry>>,
    peers: Vec<Peer>,
    /// Introductions run concurrently, so that a silent stranger delays no rank.
    introductions: JoinSet<Introduced>,
    places: Introductions,
    refusals: RefusalLog,
}

impl<'a> Registration<'a> {
    fn new(config: &'a WorldConfig, data: SocketAddr) -> Self {
        let mut entries = vec![None; config.world_size];
        entries[0] = Some(RankEntry { data, process: this_process(config) });
        let places = Introductions::new(most_introductions(MOST_INTRODUCTIONS));
        let (introductions, refusals) = (JoinSet::new(), RefusalLog::new("rendezvous"));
        Self { config, entries, peers: Vec::new(), introductions, places, refusals }
    }

    fn is_complete(&self) -> bool {
        !self.entries.contains(&None)
    }

    /// Returns the ranks that have not registered.
    fn missing(&self) -> Vec<usize> {
        (0..self.entries.len()).filter(|rank| self.entries[*rank].is_none()).collect()
    }

    /// Starts the introduction of a caller.
    fn introduce(&mut self, stream: TcpStream, from: SocketAddr) {
        let credentials = self.config.credentials.clone();
        self.places.add(self.introductions.spawn(async move {
            let outcome = timeout(INTRODUCTION, introduction(stream, credentials)).await.ok();
            Introduced { from, outcome }
        }));
    }

    /// Registers or refuses a caller.
    async fn on_introduced(&mut self, introduced: Result<Introduced, JoinError>) {
        let Ok(Introduced { from, outcome }) = introduced else {
            return self.refusals.add(&"an idle caller", "it gave way to later ones");
        };
        let Introduction { hello, mut connection, message } = match outcome {
            Some(Ok(introduction)) => introduction,
            Some(Err(reason)) => {
                return self.refusals.add(&from, &reason);
            }
            None => {
                return self.refusals.add(&from, "it did not introduce itself");
            }
        };
        let (rank, entry) = match admit(self.config, &self.entries, &hello, &message) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                tracing::warn!(%from, ?refusal, "rendezvous: refused a registration");
                let _ = frame::write(&mut connection, &refusal).await;
                return;
            }
        };
        match frame::write(&mut connection, &Message::Admitted).await {
            Ok(()) => {
                self.entries[rank] = Some(entry);
                self.peers.push(Peer { rank, connection });
            }
            // It may register again.
            Err(error) => tracing::warn!(%from, %error, "rendezvous: rank {rank} left at once"),
        }
    }

    /// Draws the token of the world and sends the table to all ranks.
    async fn finish(mut self, deadline: Instant) -> Result<(RankTable, Vec<Peer>)> {
        let config = self.config;
        let mut token = [0; 8];
        getrandom::fill(&mut token).map_err(|error| config.rendezvous_error(error.to_string()))?;
        let token = u64::from_le_bytes(token);
        let entries = std::mem::take(&mut self.entries).into_iter().flatten();
        let (data, processes) = entries.map(|entry| (entry.data, entry.process)).unzip();
        let table = RankTable { data, processes, token };
        self.peers.sort_by_key(|peer| peer.rank);
        for Peer { rank, connection } in &mut self.peers {
            let (data, processes) = (table.data.clone(), table.processes.clone());
            let message = Message::Table { data, processes, token };
            let sent = timeout_at(deadline, frame::write(connection, &message)).await;
            if !matches!(sent, Ok(Ok(()))) {
                return Err(config.rendezvous_error(format!("rank {rank} left during the rendezvous")));
            }
        }
        Ok((table, self.peers))
    }
}

/// Shakes hands with a caller and reads its first message.
async fn introduction(stream: TcpStream, credentials: Credentials) -> Result<Introduction, String> {
    let (hello, mut connection) = security::answer_async(stream, &credentials, check_purpose).await?;
    let message = frame::read(&mut connection).await.map_err(|error| error.to_string())?;
    Ok(Introduction { hello, connection, message })
}

/// Checks that a caller wants to register with rank 0.
fn check_purpose(hello: &Hello) -> Result<(), String> {
    match (hello.purpose, hello.callee) {
        (Purpose::Rendezvous, 0) => Ok(()),
        _ => Err("it called the wrong port".to_owned()),
    }
}

/// Checks a registration; returns the rank and its entry.
///
/// # Errors
/// The message that tells the caller why it is refused.
pub(crate) fn admit(
    config: &WorldConfig,
    entries: &[Option<RankEntry>],
    hello: &Hello,
    message: &Message,
) -> Result<(usize, RankEntry), Message> {
    let refused = |reason: String| Err(Message::Refused { reason });
    let Message::Register { protocol, job, rank, world_size, data, process } = message else {
        return refused("expected a registration".into());
    };
    if *job != config.job {
        return Err(Message::Elsewhere { job: config.job.clone() });
    }
    if *protocol != PROTOCOL {
        return refused(format!("protocol {protocol}; this world has protocol {PROTOCOL}"));
    }
    if *world_size != config.world_size {
        return refused(format!("a world of {world_size} ranks; this one has {}", config.world_size));
    }
    if (hello.caller, hello.world_size) != (*rank as u64, *world_size as u64) {
        return refused(format!(
            "rank {rank} has shaken hands as rank {} of {}",
            hello.caller, hello.world_size
        ));
    }
    if process.host().len() > LONGEST_NAME {
        return refused(format!("a host whose name has {} bytes", process.host().len()));
    }
    match entries.get(*rank) {
        Some(None) => Ok((*rank, RankEntry { data: *data, process: process.clone() })),
        Some(Some(_)) => refused(format!("rank {rank} is already here")),
        None => refused(format!("rank {rank} does not exist in a world of {world_size}")),
    }
}
