//! Data connections: one between each two ranks, the higher rank calling the lower.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::config::WorldConfig;
use super::rendezvous::Table;
use crate::error::Result;
use crate::failure::Failure;

/// What a caller says first: a mark, the world's token and its rank.
const MARK: [u8; 8] = *b"PHLXDATA";
const GREETING: usize = 24;

/// Connects this rank to all others.
pub(super) fn connect_all(
    config: &WorldConfig,
    listener: &TcpListener,
    table: &Table,
    failure: &Failure,
) -> Result<Vec<Option<TcpStream>>> {
    let deadline = Instant::now() + config.connect_timeout;
    let mut streams: Vec<Option<TcpStream>> = (0..config.world_size).map(|_| None).collect();
    for (rank, address) in table.data.iter().enumerate().take(config.rank) {
        let problem = |error: std::io::Error| config.rendezvous(format!("rank {rank} at {address}: {error}"));
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let mut stream = TcpStream::connect_timeout(address, left).map_err(problem)?;
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(&MARK);
        greeting[8..16].copy_from_slice(&table.token.to_le_bytes());
        greeting[16..].copy_from_slice(&(config.rank as u64).to_le_bytes());
        stream.write_all(&greeting).map_err(problem)?;
        streams[rank] = Some(stream);
    }
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    listener.set_nonblocking(true).map_err(io)?;
    while let Some(missing) = (config.rank + 1..config.world_size).find(|rank| streams[*rank].is_none()) {
        match listener.accept() {
            Ok((stream, from)) => match greeted(config, table, stream) {
                Some((rank, stream)) if streams[rank].is_none() => streams[rank] = Some(stream),
                _ => tracing::warn!(%from, "refused a data connection that is not of this world"),
            },
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if let Some(cause) = failure.get() {
                    return Err(config.rendezvous(format!("while ranks connected: {cause}")));
                }
                if Instant::now() > deadline {
                    return Err(config.rendezvous(format!("rank {missing} did not connect for data")));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => return Err(io(error)),
        }
    }
    Ok(streams)
}

/// The rank of a caller that greets as a higher rank of this world.
fn greeted(config: &WorldConfig, table: &Table, mut stream: TcpStream) -> Option<(usize, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting).ok()?;
    let word = |at: usize| greeting[at..at + 8].try_into().map(u64::from_le_bytes).ok();
    let rank = usize::try_from(word(16)?).ok()?;
    let known = greeting[..8] == MARK && word(8)? == table.token;
    (known && rank > config.rank && rank < config.world_size).then_some((rank, stream))
}
