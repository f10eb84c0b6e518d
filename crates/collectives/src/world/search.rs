//! How a rank other than 0 finds the meeting: it knocks at every port where rank 0 may listen until one lets it in.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::config::WorldConfig;
use super::connect::Table;
use super::handshake;
use super::hello::{Hello, Plane};
use super::host;
use super::interface;
use super::rendezvous::INTRODUCTION;
use crate::control::Connection;
use crate::control::frame::{self, Message, PROTOCOL};
use crate::error::{CommError, Result};

/// How long after a port was found closed it is tried again, and how long after a stranger answered there.
const AGAIN: Duration = Duration::from_millis(50);
const AFTER_STRANGER: Duration = Duration::from_millis(250);

/// Rank 0 says who is missing when its time is up, so whoever waits for that waits a little longer.
const LAST_WORD: Duration = Duration::from_secs(5);

/// What a knock has led to.
enum Answer {
    /// Rank 0 has let this rank in.
    Admitted(Connection),
    /// Rank 0 does not want this rank, for this reason.
    Refused(String),
    /// Somebody else is there, in these words.
    Stranger(String),
}

/// Finds rank 0, registers, and waits for the table. `ended` says that nobody wants to meet any more.
pub(super) async fn join(
    config: &WorldConfig,
    data: SocketAddr,
    ended: &Notify,
) -> Result<(Table, Connection)> {
    let deadline = Instant::now() + config.connect_timeout;
    let mut knocking = JoinSet::new();
    let place = config.master_address()?;
    let shared = Arc::new(config.clone());
    for port in config.ports() {
        let (config, address) = (shared.clone(), SocketAddr::new(place.ip(), port));
        knocking.spawn(async move { (port, knock(&config, address, data, deadline).await) });
    }
    let mut strangers = Vec::new();
    let (address, mut stream) = loop {
        let knocked = tokio::select! {
            knocked = knocking.join_next() => knocked,
            () = ended.notified() => return Err(config.cancelled("while it looked for rank 0")),
        };
        match knocked {
            Some(Ok((port, Ok(stream)))) => break (SocketAddr::new(place.ip(), port), stream),
            // The refusal of the right meeting is the last word; at the other ports nobody will be.
            Some(Ok((_, Err(Unmet::Refused(reason))))) => {
                return Err(config.rendezvous(format!("rank 0 refused this rank: {reason}")));
            }
            Some(Ok((port, Err(Unmet::Strange(words))))) => strangers.push((port, words)),
            Some(Ok((_, Err(Unmet::Nobody)))) | Some(Err(_)) => {}
            None => return Err(unfound(config, strangers)),
        }
    };
    drop(knocking);
    let table = tokio::select! {
        table = timeout_at(deadline + LAST_WORD, frame::read_table(&mut stream, config.world_size)) => table,
        () = ended.notified() => return Err(config.cancelled("while other ranks than rank 0 were missing")),
    };
    match table {
        Ok(Ok(Message::Table { mut data, processes, token }))
            if [data.len(), processes.len()] == [config.world_size; 2] =>
        {
            // Rank 0's own address may be "any"; it is reached where it was met.
            if data[0].ip().is_unspecified() {
                data[0].set_ip(address.ip());
            }
            Ok((Table { data, processes, token }, stream))
        }
        Ok(Ok(other)) => Err(config.rendezvous(format!("rank 0 answered {other:?}"))),
        Ok(Err(error)) => Err(config.rendezvous(format!("rank 0 closed the connection: {error}"))),
        Err(_) => {
            let (all, seconds) = (config.world_size, config.connect_timeout.as_secs());
            Err(config.rendezvous(format!("not all {all} ranks came within {seconds} s")))
        }
    }
}

/// Why a port did not lead to the meeting.
enum Unmet {
    /// It is the meeting, and this rank is not wanted there.
    Refused(String),
    /// Somebody else was there at last.
    Strange(String),
    /// Nobody was.
    Nobody,
}

/// The error of a search that found nobody, or only `strangers` at some of the ports.
fn unfound(config: &WorldConfig, mut strangers: Vec<(u16, String)>) -> CommError {
    let seconds = config.connect_timeout.as_secs();
    strangers.sort();
    if let (1, [(_, words)]) = (config.master_ports, strangers.as_slice()) {
        return config.rendezvous(words.clone());
    }
    let mut text = format!("rank 0 cannot be reached within {seconds} s");
    if config.master_ports > 1 {
        let (first, last) = config.ports().into_inner();
        text.push_str(&format!(" at any of the ports {first} to {last}"));
    }
    for (port, words) in strangers {
        text.push_str(&format!("; at {port}: {words}"));
    }
    config.rendezvous(text)
}

/// Knocks at one port until it is the right one, or until the time is up. Where there is only one port, a stranger there is
/// the end; where there are several, rank 0 may yet come.
async fn knock(
    config: &WorldConfig,
    address: SocketAddr,
    data: SocketAddr,
    deadline: Instant,
) -> Result<Connection, Unmet> {
    let only = config.master_ports <= 1;
    let mut seen = Unmet::Nobody;
    while Instant::now() < deadline {
        // Rank 0 may start later than this one.
        let pause = match timeout_at(deadline, TcpStream::connect(address)).await {
            Err(_) => break,
            Ok(Err(_)) => {
                seen = Unmet::Nobody;
                AGAIN
            }
            Ok(Ok(stream)) => {
                // Who says nothing at one of several ports may be anybody; at the only one it is rank 0, which is slow.
                let patience = if only { deadline } else { deadline.min(Instant::now() + INTRODUCTION) };
                match timeout_at(patience, introduce(config, stream, data)).await {
                    Ok(Answer::Admitted(stream)) => return Ok(stream),
                    Ok(Answer::Refused(reason)) => return Err(Unmet::Refused(reason)),
                    Ok(Answer::Stranger(words)) if only => return Err(Unmet::Strange(words)),
                    Ok(Answer::Stranger(words)) => seen = Unmet::Strange(words),
                    Err(_) => {
                        let seconds = config.connect_timeout.as_secs();
                        let words = if only {
                            format!("rank 0 does not answer within {seconds} s")
                        } else {
                            "somebody who does not answer".to_owned()
                        };
                        seen = Unmet::Strange(words);
                    }
                }
                AFTER_STRANGER
            }
        };
        tokio::time::sleep_until(deadline.min(Instant::now() + pause)).await;
    }
    Err(seen)
}

/// Says who this rank is and hears what the other side says to that.
async fn introduce(config: &WorldConfig, stream: TcpStream, data: SocketAddr) -> Answer {
    // The address that rank 0 sees is the one that others reach, unless this rank listens on a fixed one. Who reaches rank 0 within
    // its host, as by a host's own name under a loopback address, may have others on other hosts.
    let reachable = match (data.ip().is_unspecified(), stream.local_addr()) {
        (true, Ok(own)) if own.ip().is_loopback() => {
            SocketAddr::new(interface::reached(data.ip()), data.port())
        }
        (true, Ok(own)) => SocketAddr::new(own.ip(), data.port()),
        _ => data,
    };
    let hello = Hello {
        plane: Plane::Rendezvous,
        has_secret: false,
        sealed: false,
        lane: 0,
        token: 0,
        caller: config.rank as u64,
        callee: 0,
        world_size: config.world_size as u64,
    };
    let mut stream = match handshake::call_async(stream, &config.credentials(), hello).await {
        Ok(stream) => stream,
        Err(why) => return Answer::Stranger(why),
    };
    let register = Message::Register {
        protocol: PROTOCOL,
        job: config.job.clone(),
        rank: config.rank,
        world_size: config.world_size,
        data: reachable,
        process: host::process(config),
    };
    let asked = async {
        frame::write(&mut stream, &register).await?;
        frame::read(&mut stream).await
    };
    match asked.await {
        Ok(Message::Admitted) => Answer::Admitted(stream),
        Ok(Message::Refused { reason }) => Answer::Refused(reason),
        Ok(Message::Elsewhere { job }) => Answer::Stranger(format!("the meeting of another job, `{job}`")),
        Ok(other) => Answer::Stranger(format!("rank 0 answered {other:?}")),
        Err(error) => Answer::Stranger(format!("rank 0 closed the connection: {error}")),
    }
}
