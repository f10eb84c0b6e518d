//! The meeting: every rank registers with rank 0 and learns where the others listen.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::config::WorldConfig;
use super::connect::Table;
use super::handshake;
use super::secret::Purpose;
use crate::control::frame::{self, Message, PROTOCOL};
use crate::control::{self, Connection, ControlPlane, Heartbeat, Watched};
use crate::error::{CommError, Result};

/// How long a connection may take to introduce itself; strangers are not waited for.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Introductions that may be under way at a time, beyond which callers are turned away.
const DOORS: usize = 4096;

/// Meets the other ranks; afterwards a thread of its own keeps watch over them.
pub(super) fn meet(
    config: &WorldConfig,
    listener: Option<TcpListener>,
    data: SocketAddr,
    watched: Watched,
) -> Result<(ControlPlane, Table)> {
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    let (met, result) = crossbeam_channel::bounded(1);
    let (control, commands) = ControlPlane::remote(watched.clone());
    let shared = config.clone();
    let thread =
        std::thread::Builder::new().name(format!("phalanx-control-{}", config.rank)).spawn(move || {
            runtime.block_on(async move {
                let outcome = match listener {
                    Some(listener) => {
                        host(&shared, listener, data).await.map(|(table, peers)| (table, Ok(peers)))
                    }
                    None => join(&shared, data).await.map(|(table, hub)| (table, Err(hub))),
                };
                match outcome {
                    Err(error) => drop(met.send(Err(error))),
                    Ok((table, connections)) => {
                        drop(met.send(Ok(table)));
                        let heartbeat = Heartbeat {
                            interval: shared.heartbeat_interval,
                            timeout: shared.heartbeat_timeout,
                        };
                        match connections {
                            Ok(peers) => control::watch_as_hub(heartbeat, peers, commands, watched).await,
                            Err(hub) => control::watch_as_leaf(heartbeat, hub, commands, watched).await,
                        }
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
) -> Result<(Table, Vec<(usize, Connection)>)> {
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    listener.set_nonblocking(true).map_err(io)?;
    let listener = tokio::net::TcpListener::from_std(listener).map_err(io)?;
    let tls = config.tls_configs()?;
    let deadline = Instant::now() + config.connect_timeout;
    let mut table: Vec<Option<SocketAddr>> = vec![None; config.world_size];
    table[0] = Some(data);
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
                    let (secret, tls) = (config.secret.clone(), tls.clone());
                    introductions.spawn(async move {
                        let first = timeout(INTRODUCTION, async {
                            let mut stream = handshake::control(stream, tls.as_ref(), false).await?;
                            handshake::answer_async(&mut stream, secret.as_ref(), Purpose::Control).await?;
                            let message = frame::read(&mut stream).await.map_err(|error| error.to_string())?;
                            Ok::<_, String>((stream, message))
                        });
                        (from, first.await)
                    });
                }
                Err(error) => tracing::warn!(%error, "rendezvous: accepting a connection failed"),
            },
            Some(introduced) = introductions.join_next() => {
                let Ok((from, first)) = introduced else { continue };
                let (mut stream, message) = match first {
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
                match admit(config, &table, &message) {
                    Ok((rank, address)) => {
                        table[rank] = Some(address);
                        peers.push((rank, stream));
                    }
                    Err(reason) => {
                        tracing::warn!(%from, %reason, "rendezvous: refused a registration");
                        let _ = frame::write(&mut stream, &Message::Refused { reason }).await;
                    }
                }
            },
            () = tokio::time::sleep_until(deadline) => {
                let missing = table.iter().enumerate().filter(|(_, data)| data.is_none()).map(|(rank, _)| rank);
                return Err(CommError::Missing {
                    address: format!("{}:{}", config.master_addr, config.master_port),
                    seconds: config.connect_timeout.as_secs(),
                    missing: missing.collect(),
                    world_size: config.world_size,
                });
            }
        }
    }
    let mut token = [0; 8];
    getrandom::fill(&mut token).map_err(|error| config.rendezvous(error.to_string()))?;
    let token = u64::from_le_bytes(token);
    let table = Table { data: table.into_iter().flatten().collect(), token };
    peers.sort_by_key(|(rank, _)| *rank);
    for (rank, stream) in &mut peers {
        let message = Message::Table { data: table.data.clone(), token };
        let sent = timeout_at(deadline, frame::write(stream, &message)).await;
        if !matches!(sent, Ok(Ok(()))) {
            return Err(config.rendezvous(format!("rank {rank} left during the meeting")));
        }
    }
    Ok((table, peers))
}

/// The rank and data address of a registration, or why it is refused.
fn admit(
    config: &WorldConfig,
    table: &[Option<SocketAddr>],
    message: &Message,
) -> Result<(usize, SocketAddr), String> {
    let Message::Register { protocol, rank, world_size, data } = message else {
        return Err("expected a registration".into());
    };
    if *protocol != PROTOCOL {
        return Err(format!("protocol {protocol}; this world speaks {PROTOCOL}"));
    }
    if *world_size != config.world_size {
        return Err(format!("a world of {world_size} ranks; this one has {}", config.world_size));
    }
    match table.get(*rank) {
        Some(None) => Ok((*rank, *data)),
        Some(Some(_)) => Err(format!("rank {rank} is already here")),
        None => Err(format!("rank {rank} does not exist in a world of {world_size}")),
    }
}

/// Every other rank: finds rank 0, registers, and waits for the table.
async fn join(config: &WorldConfig, data: SocketAddr) -> Result<(Table, Connection)> {
    let deadline = Instant::now() + config.connect_timeout;
    let address = config.master_address()?;
    let seconds = config.connect_timeout.as_secs();
    // Rank 0 may start later than this one.
    let stream = loop {
        match timeout_at(deadline, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => break stream,
            Ok(Err(_)) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(50)).await,
            Ok(Err(error)) => {
                return Err(
                    config.rendezvous(format!("rank 0 cannot be reached within {seconds} s: {error}"))
                );
            }
            Err(_) => return Err(config.rendezvous(format!("rank 0 cannot be reached within {seconds} s"))),
        }
    };
    // The address that rank 0 sees is the one that others reach, unless this rank listens on a fixed one.
    let reachable = match (data.ip().is_unspecified(), stream.local_addr()) {
        (true, Ok(own)) => SocketAddr::new(own.ip(), data.port()),
        _ => data,
    };
    let register = Message::Register {
        protocol: PROTOCOL,
        rank: config.rank,
        world_size: config.world_size,
        data: reachable,
    };
    let problem = |error: std::io::Error| config.rendezvous(format!("rank 0 closed the connection: {error}"));
    let tls = config.tls_configs()?;
    let shaking = async {
        let mut stream = handshake::control(stream, tls.as_ref(), true).await?;
        handshake::call_async(&mut stream, config.secret.as_ref(), Purpose::Control).await?;
        Ok::<_, String>(stream)
    };
    let mut stream = match timeout_at(deadline, shaking).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(why)) => return Err(config.rendezvous(why)),
        Err(_) => return Err(config.rendezvous(format!("rank 0 does not answer within {seconds} s"))),
    };
    frame::write(&mut stream, &register).await.map_err(problem)?;
    // Rank 0 says who is missing when its time is up, so it gets a little longer.
    let patience = deadline + Duration::from_secs(5);
    match timeout_at(patience, frame::read(&mut stream)).await {
        Ok(Ok(Message::Table { mut data, token })) if data.len() == config.world_size => {
            // Rank 0's own address may be "any"; it is reached where it was met.
            if data[0].ip().is_unspecified() {
                data[0].set_ip(address.ip());
            }
            Ok((Table { data, token }, stream))
        }
        Ok(Ok(Message::Refused { reason })) => {
            Err(config.rendezvous(format!("rank 0 refused this rank: {reason}")))
        }
        Ok(Ok(other)) => Err(config.rendezvous(format!("rank 0 answered {other:?}"))),
        Ok(Err(error)) => Err(problem(error)),
        Err(_) => {
            Err(config.rendezvous(format!("not all {} ranks came within {seconds} s", config.world_size)))
        }
    }
}
