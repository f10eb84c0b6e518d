//! The other ranks' side of the rendezvous: they try every port where rank 0 may listen until one accepts them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::Waits;
use super::host::this_process;
use super::table::RankTable;
use super::timeouts::INTRODUCTION;
use crate::config::WorldConfig;
use crate::control::frame::{self, Message, PROTOCOL};
use crate::control::{Connection, MeetingPhase};
use crate::error::{CommError, Result};
use crate::security::{self, Hello, Purpose};
use phalanx_environment::reachable_address;

/// The time until a closed port is tried again.
const AFTER_CLOSED: Duration = Duration::from_millis(50);

/// The time until a port is tried again where a stranger answered.
const AFTER_STRANGER: Duration = Duration::from_millis(250);

/// The extra wait for the table: rank 0 names the missing ranks when its time is up.
const LAST_WORD: Duration = Duration::from_secs(5);

/// The answer to a registration.
enum Answer {
    /// Rank 0 accepts this rank.
    Admitted(Connection),
    /// Rank 0 refuses this rank.
    Refused(String),
    /// The listener is not the rank 0 of this job, as described.
    Stranger(String),
    /// The listener does not answer.
    Silence,
}

/// The reason why a port did not lead to the rendezvous.
enum SearchError {
    /// It is the rendezvous, and rank 0 refuses this rank.
    Refused(String),
    /// A stranger answered last, as described.
    Stranger(String),
    /// The port was closed.
    Closed,
}

/// Finds rank 0, registers, and waits for the table.
pub(super) async fn join(
    config: &WorldConfig,
    data: SocketAddr,
    waits: Waits<'_>,
) -> Result<(RankTable, Connection)> {
    let deadline = Instant::now() + config.timeouts.connect;
    waits.progress.set(MeetingPhase::Search);
    let (address, mut connection) = tokio::select! {
        found = find(config, data, deadline) => found?,
        () = waits.cancelled.notified() => return Err(config.cancelled("while it looked for rank 0")),
    };
    waits.progress.set(MeetingPhase::Registered);
    let table = tokio::select! {
        table = timeout_at(deadline + LAST_WORD, frame::read_table(&mut connection, config.world_size)) => table,
        () = waits.cancelled.notified() => {
            return Err(config.cancelled("while other ranks than rank 0 were missing"));
        }
    };
    match table {
        Ok(Ok(Message::Table { mut data, processes, token }))
            if [data.len(), processes.len()] == [config.world_size; 2] =>
        {
            // Rank 0 may listen at all addresses. It is reached where it was found.
            if data[0].ip().is_unspecified() {
                data[0].set_ip(address.ip());
            }
            Ok((RankTable { data, processes, token }, connection))
        }
        Ok(Ok(other)) => Err(config.rendezvous_error(format!("rank 0 answered {other:?}"))),
        Ok(Err(error)) => Err(config.rendezvous_error(format!("rank 0 closed the connection: {error}"))),
        Err(_) => {
            let (all, seconds) = (config.world_size, config.timeouts.connect.as_secs());
            Err(config.rendezvous_error(format!("not all {all} ranks came within {seconds} s")))
        }
    }
}

/// Registers with rank 0 at one of its ports; returns its address and the connection.
async fn find(config: &WorldConfig, data: SocketAddr, deadline: Instant) -> Result<(SocketAddr, Connection)> {
    let host = config.master_address()?.ip();
    let shared = Arc::new(config.clone());
    let mut attempts = JoinSet::new();
    for port in config.ports() {
        let (config, address) = (shared.clone(), SocketAddr::new(host, port));
        attempts.spawn(async move { (address, try_port(&config, address, data, deadline).await) });
    }
    let mut strangers = Vec::new();
    while let Some(attempt) = attempts.join_next().await {
        let Ok((address, attempt)) = attempt else { continue };
        match attempt {
            Ok(connection) => return Ok((address, connection)),
            // The refusal of the right rendezvous is final: no other port has it.
            Err(SearchError::Refused(reason)) => {
                return Err(config.rendezvous_error(format!("rank 0 refused this rank: {reason}")));
            }
            Err(SearchError::Stranger(words)) => strangers.push((address.port(), words)),
            Err(SearchError::Closed) => {}
        }
    }
    Err(not_found(config, strangers))
}

/// The error of a search that found only `strangers` at some of the ports.
fn not_found(config: &WorldConfig, mut strangers: Vec<(u16, String)>) -> CommError {
    let seconds = config.timeouts.connect.as_secs();
    strangers.sort();
    if let (1, [(_, words)]) = (config.meeting.ports, strangers.as_slice()) {
        return config.rendezvous_error(words.clone());
    }
    let mut text = format!("rank 0 cannot be reached within {seconds} s");
    if config.meeting.ports > 1 {
        let (first, last) = config.ports().into_inner();
        text.push_str(&format!(" at any of the ports {first} to {last}"));
    }
    for (port, words) in strangers {
        text.push_str(&format!("; at {port}: {words}"));
    }
    config.rendezvous_error(text)
}

/// Tries one port until it is the right one or time is up. A stranger at the only port ends the search; with several ports rank 0
/// may yet come.
async fn try_port(
    config: &WorldConfig,
    address: SocketAddr,
    data: SocketAddr,
    deadline: Instant,
) -> Result<Connection, SearchError> {
    let is_only = config.meeting.ports <= 1;
    let mut last = SearchError::Closed;
    while Instant::now() < deadline {
        // Rank 0 may start later than this rank.
        let pause = match timeout_at(deadline, TcpStream::connect(address)).await {
            Err(_) => break,
            Ok(Err(_)) => {
                last = SearchError::Closed;
                AFTER_CLOSED
            }
            Ok(Ok(stream)) => {
                // A silent listener at one of several ports may be anything. At the only port it is a slow rank 0.
                let limit = if is_only { deadline } else { deadline.min(Instant::now() + INTRODUCTION) };
                let answer = timeout_at(limit, register(config, stream, data)).await;
                match answer.unwrap_or(Answer::Silence) {
                    Answer::Admitted(connection) => return Ok(connection),
                    Answer::Refused(reason) => return Err(SearchError::Refused(reason)),
                    Answer::Stranger(words) if is_only => return Err(SearchError::Stranger(words)),
                    Answer::Stranger(words) => last = SearchError::Stranger(words),
                    Answer::Silence if is_only => {
                        let seconds = config.timeouts.connect.as_secs();
                        let words = format!("rank 0 does not answer within {seconds} s");
                        last = SearchError::Stranger(words);
                    }
                    Answer::Silence => last = SearchError::Stranger("no answer".to_owned()),
                }
                AFTER_STRANGER
            }
        };
        tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
    }
    Err(last)
}

/// Shakes hands with a listener and registers.
async fn register(config: &WorldConfig, stream: TcpStream, data: SocketAddr) -> Answer {
    let data = reachable_data(data, &stream);
    let hello = Hello::between(Purpose::Rendezvous, config.rank, 0, config.world_size);
    let mut connection = match security::call_async(stream, &config.credentials, hello).await {
        Ok(connection) => connection,
        Err(why) => return Answer::Stranger(why),
    };
    let register = Message::Register {
        protocol: PROTOCOL,
        job: config.job.clone(),
        rank: config.rank,
        world_size: config.world_size,
        data,
        process: this_process(config),
    };
    let asked = async {
        frame::write(&mut connection, &register).await?;
        frame::read(&mut connection).await
    };
    match asked.await {
        Ok(Message::Admitted) => Answer::Admitted(connection),
        Ok(Message::Refused { reason }) => Answer::Refused(reason),
        Ok(Message::Elsewhere { job }) => Answer::Stranger(format!("the rendezvous of another job, `{job}`")),
        Ok(other) => Answer::Stranger(format!("rank 0 answered {other:?}")),
        Err(error) => Answer::Stranger(format!("rank 0 closed the connection: {error}")),
    }
}

/// Returns the address by which other ranks reach this rank's data listener. One that listens at all addresses is reached at the address
/// of its connection to rank 0. If that is a loopback address, ranks of other hosts need another one.
fn reachable_data(data: SocketAddr, stream: &TcpStream) -> SocketAddr {
    match (data.ip().is_unspecified(), stream.local_addr()) {
        (true, Ok(own)) if own.ip().is_loopback() => {
            SocketAddr::new(reachable_address(data.ip()), data.port())
        }
        (true, Ok(own)) => SocketAddr::new(own.ip(), data.port()),
        _ => data,
    }
}
