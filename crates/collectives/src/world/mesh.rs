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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Cause;

    #[test]
    fn strangers_at_a_data_port_are_refused_and_harm_nothing() {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let data = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let table = Table { data, token: 7 };
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(&MARK);
        let said = |token: u64, rank: u64| {
            let mut greeting = greeting;
            greeting[8..16].copy_from_slice(&token.to_le_bytes());
            greeting[16..].copy_from_slice(&rank.to_le_bytes());
            greeting.to_vec()
        };
        // Noise, another world's token, a rank that does not exist, this rank itself, and half a greeting.
        let mut half = said(7, 1);
        half.truncate(9);
        let strangers: Vec<TcpStream> = [vec![0xff; 64], said(8, 1), said(7, 2), said(7, 0), half]
            .iter()
            .map(|bytes| {
                let mut stranger = TcpStream::connect(table.data[0]).expect("it listens");
                stranger.write_all(bytes).expect("it reads");
                if bytes.len() < GREETING {
                    stranger.shutdown(std::net::Shutdown::Write).expect("it is open");
                }
                stranger
            })
            .collect();
        let [first, second] = listeners;
        let (shared, failure) = (table.clone(), Failure::default());
        let other = std::thread::spawn(move || {
            connect_all(&WorldConfig::local(1, 2, 1), &second, &shared, &Failure::default())
        });
        let mut own =
            connect_all(&WorldConfig::local(0, 2, 1), &first, &table, &failure).expect("rank 1 came");
        let mut other = other.join().expect("no panic").expect("rank 0 listens");
        let (mut here, mut there) = (own.remove(1).expect("connected"), other.remove(0).expect("connected"));
        there.write_all(b"hello").expect("connected");
        let mut heard = [0; 5];
        here.read_exact(&mut heard).expect("connected");
        assert_eq!(&heard, b"hello");
        drop(strangers);
    }

    #[test]
    fn a_failure_ends_the_wait_for_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let table = Table { data: vec![address; 3], token: 7 };
        let failure = Failure::default();
        failure.set(Cause::Lost(2));
        let error =
            connect_all(&WorldConfig::local(0, 3, 1), &listener, &table, &failure).expect_err("broken");
        assert!(error.to_string().contains("rank 2 was lost"), "{error}");
    }
}
