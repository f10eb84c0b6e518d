//! The meeting: every rank registers with rank 0 and learns where the others listen.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::WorldConfig;
use super::connect::Table;
use super::doors::Doors;
use super::handshake;
use super::hello::{Hello, Plane};
use super::host;
use super::search;
use crate::control::frame::{self, Message, PROTOCOL};
use crate::control::{self, Caller, Connection, ControlPlane, Heartbeat, Met, Process, Succession, Watched};
use crate::error::{CommError, Result};

/// How long a connection may take to introduce itself; strangers are not waited for.
pub(super) const INTRODUCTION: Duration = Duration::from_secs(5);

/// The longest name of a host: what the system allows, and more.
const LONGEST_NAME: usize = 255;

/// Introductions that may be under way at a time, beyond which callers are turned away.
const DOORS: usize = 4096;

/// Meets the other ranks; afterwards a thread of its own keeps watch over them. Those who have lost the hub are `callers`.
pub(super) fn meet(
    config: &WorldConfig,
    listener: Option<TcpListener>,
    data: SocketAddr,
    watched: Watched,
    callers: UnboundedReceiver<Caller>,
) -> Result<(ControlPlane, Table)> {
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    let (met, result) = crossbeam_channel::bounded(1);
    let (control, commands) = ControlPlane::remote(watched.clone());
    let shared = config.clone();
    // A world that breaks before it has met is one that nobody wants any more.
    let ended = Arc::new(Notify::new());
    let ending = ended.clone();
    watched.failure.on_break(move || ending.notify_one());
    let thread =
        std::thread::Builder::new().name(format!("phalanx-control-{}", config.rank)).spawn(move || {
            runtime.block_on(async move {
                let outcome = match listener {
                    Some(listener) => {
                        let hosted = host(&shared, listener, data, &ended).await;
                        hosted.map(|(table, peers)| (table, Met::Hub(peers)))
                    }
                    None => {
                        let joined = search::join(&shared, data, &ended).await;
                        joined.map(|(table, hub)| (table, Met::Leaf(hub)))
                    }
                };
                match outcome {
                    Err(error) => drop(met.send(Err(error))),
                    Ok((table, connections)) => {
                        let own = shared.rank;
                        let key = shared.key(table.token);
                        let doors = Arc::new(Doors { table: Arc::new(table.clone()), key });
                        drop(met.send(Ok(table)));
                        let heartbeat = Heartbeat {
                            interval: shared.heartbeat_interval,
                            timeout: shared.heartbeat_timeout,
                        };
                        let succession = Succession::new((own, shared.world_size), doors, callers);
                        control::watch(heartbeat, connections, commands, watched, succession).await;
                    }
                }
            });
        });
    control.keep(thread.map_err(io)?);
    let table = result.recv().map_err(|_| config.rendezvous("the control thread ended early"))??;
    Ok((control, table))
}

/// Rank 0: accepts registrations until all ranks are there.
async fn host(
    config: &WorldConfig,
    listener: TcpListener,
    data: SocketAddr,
    ended: &Notify,
) -> Result<(Table, Vec<(usize, Connection)>)> {
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    listener.set_nonblocking(true).map_err(io)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(io)?;
    let deadline = Instant::now() + config.connect_timeout;
    let mut table: Vec<Option<(SocketAddr, Process)>> = vec![None; config.world_size];
    table[0] = Some((data, host::process(config)));
    let mut peers: Vec<(usize, Connection)> = Vec::new();
    // Introductions run side by side, so that a silent stranger holds nobody up.
    let mut introductions = tokio::task::JoinSet::new();
    while table.contains(&None) {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    if introductions.len() >= DOORS {
                        tracing::warn!(%from, "rendezvous: too many strangers at once; refused one");
                        continue;
                    }
                    let credentials = config.credentials();
                    introductions.spawn(async move {
                        let first = timeout(INTRODUCTION, async {
                            let (hello, mut stream) =
                                handshake::answer_async(stream, &credentials, means_rendezvous).await?;
                            let message = frame::read(&mut stream).await.map_err(|error| error.to_string())?;
                            Ok::<_, String>((hello, stream, message))
                        });
                        (from, first.await)
                    });
                }
                Err(error) => tracing::warn!(%error, "rendezvous: accepting a connection failed"),
            },
            Some(introduced) = introductions.join_next() => {
                let Ok((from, first)) = introduced else { continue };
                let (hello, mut stream, message) = match first {
                    Ok(Ok(introduced)) => introduced,
                    Ok(Err(reason)) => {
                        tracing::warn!(%from, %reason, "rendezvous: refused a connection");
                        continue;
                    }
                    Err(_) => {
                        tracing::warn!(%from, "rendezvous: refused a connection that did not introduce itself");
                        continue;
                    }
                };
                match admit(config, &table, &hello, &message) {
                    // One that has gone again may come again.
                    Ok((rank, place)) => match frame::write(&mut stream, &Message::Admitted).await {
                        Ok(()) => {
                            table[rank] = Some(place);
                            peers.push((rank, stream));
                        }
                        Err(error) => tracing::warn!(%from, %error, "rendezvous: rank {rank} left at once"),
                    },
                    Err(refusal) => {
                        tracing::warn!(%from, ?refusal, "rendezvous: refused a registration");
                        let _ = frame::write(&mut stream, &refusal).await;
                    }
                }
            },
            () = ended.notified() => {
                let missing = missing(&table);
                let during = format!("while ranks {missing:?} of {} were missing", config.world_size);
                return Err(config.cancelled(during));
            }
            () = tokio::time::sleep_until(deadline) => {
                return Err(CommError::Missing {
                    address: config.meeting(),
                    seconds: config.connect_timeout.as_secs(),
                    missing: missing(&table),
                    world_size: config.world_size,
                });
            }
        }
    }
    let mut token = [0; 8];
    getrandom::fill(&mut token).map_err(|error| config.rendezvous(error.to_string()))?;
    let token = u64::from_le_bytes(token);
    let (data, processes) = table.into_iter().flatten().unzip();
    let table = Table { data, processes, token };
    peers.sort_by_key(|(rank, _)| *rank);
    for (rank, stream) in &mut peers {
        let (data, processes) = (table.data.clone(), table.processes.clone());
        let message = Message::Table { data, processes, token };
        let sent = timeout_at(deadline, frame::write(stream, &message)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(config.rendezvous(format!("rank {rank} left during the meeting")));
        }
    }
    Ok((table, peers))
}

/// The ranks that have not come.
fn missing(table: &[Option<(SocketAddr, Process)>]) -> Vec<usize> {
    table.iter().enumerate().filter(|(_, place)| place.is_none()).map(|(rank, _)| rank).collect()
}

/// Whether a caller means rank 0's meeting place.
fn means_rendezvous(hello: &Hello) -> Result<(), String> {
    match (hello.plane, hello.callee) {
        (Plane::Rendezvous, 0) => Ok(()),
        _ => Err("it came to the wrong port".to_owned()),
    }
}

/// The rank of a registration, its data address and its process, or what to answer to one that is refused.
pub(super) fn admit(
    config: &WorldConfig,
    table: &[Option<(SocketAddr, Process)>],
    hello: &Hello,
    message: &Message,
) -> Result<(usize, (SocketAddr, Process)), Message> {
    let refused = |reason: String| Err(Message::Refused { reason });
    let Message::Register { protocol, job, rank, world_size, data, process } = message else {
        return refused("expected a registration".into());
    };
    if *job != config.job {
        return Err(Message::Elsewhere { job: config.job.clone() });
    }
    if *protocol != PROTOCOL {
        return refused(format!("protocol {protocol}; this world speaks {PROTOCOL}"));
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
    match table.get(*rank) {
        Some(None) => Ok((*rank, (*data, process.clone()))),
        Some(Some(_)) => refused(format!("rank {rank} is already here")),
        None => refused(format!("rank {rank} does not exist in a world of {world_size}")),
    }
}
