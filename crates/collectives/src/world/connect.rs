//! Data connections: some between each two ranks, the higher rank calling the lower.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::handshake;
use super::secret::Secret;
use super::tls::TlsConfigs;
use crate::control::Process;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::transport::Wire;

/// After the handshake a caller says which world it means, its rank, and which of their connections this is.
const GREETING: usize = 24;

/// How long a connection may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// Introductions that may be under way at a time; more callers wait at the door.
const DOORS: usize = 64;

/// Where each rank listens for data, its process, and the token of this world.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) data: Vec<SocketAddr>,
    /// None in the table of a part of a world.
    pub(super) processes: Vec<Process>,
    pub(super) token: u64,
}

/// What is needed to connect a rank to all others.
pub(super) struct Connections<'a> {
    pub(super) rank: usize,
    pub(super) table: Arc<Table>,
    /// Connections between each two.
    pub(super) lanes: usize,
    pub(super) secret: Option<&'a Secret>,
    /// How connections are encrypted, if they are.
    pub(super) tls: Option<&'a TlsConfigs>,
    pub(super) timeout: Duration,
}

/// A caller that was let in: its rank, which connection, and the connection.
type Admitted = (usize, usize, Wire);

fn problem(rank: usize, address: SocketAddr, problem: impl std::fmt::Display) -> CommError {
    CommError::Rendezvous { address: address.to_string(), problem: format!("rank {rank}: {problem}") }
}

impl Connections<'_> {
    /// Connects this rank to all others: the connections to each, in the same order on both sides.
    pub(super) fn connect(&self, listener: &TcpListener, failure: &Failure) -> Result<Vec<Vec<Wire>>> {
        let world = self.table.data.len();
        let deadline = Instant::now() + self.timeout;
        let mut streams: Vec<Vec<Option<Wire>>> =
            (0..world).map(|_| (0..self.lanes).map(|_| None).collect()).collect();
        for (rank, address) in self.table.data.iter().enumerate().take(self.rank) {
            for (lane, place) in streams[rank].iter_mut().enumerate() {
                *place = Some(self.call(rank, *address, lane, deadline)?);
            }
        }
        let own = self.table.data[self.rank];
        let io = |error: std::io::Error| problem(self.rank, own, error);
        listener.set_nonblocking(true).map_err(io)?;
        let (let_in, callers) = crossbeam_channel::bounded::<Option<Admitted>>(DOORS);
        let mut open = 0;
        while let Some(missing) =
            (self.rank + 1..world).find(|rank| streams[*rank].iter().any(Option::is_none))
        {
            while let Ok(introduced) = callers.try_recv() {
                open -= 1;
                let Some((rank, lane, stream)) = introduced else { continue };
                match streams[rank].get_mut(lane) {
                    Some(place @ None) => *place = Some(stream),
                    _ => tracing::warn!(rank, lane, "refused a data connection that is there already"),
                }
            }
            let accepted =
                if open < DOORS { listener.accept() } else { Err(std::io::ErrorKind::WouldBlock.into()) };
            match accepted {
                Ok((stream, from)) => {
                    let (door, rank, table) = (let_in.clone(), self.rank, self.table.clone());
                    let (secret, tls) = (self.secret.cloned(), self.tls.cloned());
                    let introduce = move || {
                        let caller = introduced(rank, &table, secret.as_ref(), tls.as_ref(), stream);
                        if let Err(reason) = &caller {
                            tracing::warn!(%from, %reason, "refused a data connection");
                        }
                        let _ = door.send(caller.ok());
                    };
                    // Each introduces itself on a thread of its own, so that a silent stranger holds nobody up.
                    std::thread::Builder::new().name("phalanx-door".into()).spawn(introduce).map_err(io)?;
                    open += 1;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    if let Some(cause) = failure.get() {
                        return Err(problem(self.rank, own, format!("while ranks connected: {cause}")));
                    }
                    if Instant::now() > deadline {
                        return Err(problem(
                            self.rank,
                            own,
                            format!("rank {missing} did not connect for data"),
                        ));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => return Err(io(error)),
            }
        }
        Ok(streams.into_iter().map(|lanes| lanes.into_iter().flatten().collect()).collect())
    }

    fn call(&self, rank: usize, address: SocketAddr, lane: usize, deadline: Instant) -> Result<Wire> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let io = |error: std::io::Error| problem(rank, address, error);
        let stream = TcpStream::connect_timeout(&address, left).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        stream.set_read_timeout(Some(left)).map_err(io)?;
        let mut stream = wire(stream, self.tls, true).map_err(io)?;
        handshake::call(&mut stream, self.secret).map_err(|why| problem(rank, address, why))?;
        let mut greeting = [0; GREETING];
        greeting[..8].copy_from_slice(&self.table.token.to_le_bytes());
        greeting[8..16].copy_from_slice(&(self.rank as u64).to_le_bytes());
        greeting[16..].copy_from_slice(&(lane as u64).to_le_bytes());
        stream.write_all(&greeting).map_err(io)?;
        Ok(stream)
    }
}

/// A connection ready for the handshake: encrypted, if that is wanted, in the role of a caller or of who answers.
#[cfg_attr(not(feature = "tls"), allow(unused_variables, clippy::unnecessary_wraps))]
fn wire(stream: TcpStream, tls: Option<&TlsConfigs>, calls: bool) -> std::io::Result<Wire> {
    match tls {
        None => Ok(Wire::Plain(stream)),
        #[cfg(feature = "tls")]
        Some(ends) => {
            let connection = if calls { ends.call()? } else { ends.answer()? };
            Ok(Wire::Encrypted(Box::new(connection), stream))
        }
        #[cfg(not(feature = "tls"))]
        Some(never) => match *never {},
    }
}

/// A caller that proves to be a higher rank of this world, or why it is refused.
fn introduced(
    own: usize,
    table: &Table,
    secret: Option<&Secret>,
    tls: Option<&TlsConfigs>,
    stream: TcpStream,
) -> Result<Admitted, String> {
    let lost = |error: std::io::Error| format!("the connection broke: {error}");
    stream.set_nonblocking(false).map_err(lost)?;
    stream.set_nodelay(true).map_err(lost)?;
    stream.set_read_timeout(Some(INTRODUCTION)).map_err(lost)?;
    let mut stream = wire(stream, tls, false).map_err(lost)?;
    handshake::answer(&mut stream, secret)?;
    let mut greeting = [0; GREETING];
    stream.read_exact(&mut greeting).map_err(lost)?;
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| greeting[at + i]));
    if word(0) != table.token {
        return Err("it means another world".into());
    }
    let (rank, lane) = (word(8) as usize, word(16) as usize);
    if rank <= own || rank >= table.data.len() {
        return Err(format!("it says that it is rank {rank}"));
    }
    Ok((rank, lane, stream))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Cause;

    fn mesh(rank: usize, table: &Table, secret: Option<&'static Secret>) -> Connections<'static> {
        Connections {
            rank,
            table: Arc::new(table.clone()),
            lanes: 2,
            secret,
            tls: None,
            timeout: Duration::from_secs(20),
        }
    }

    #[test]
    fn strangers_at_a_data_port_are_refused_and_harm_nothing() {
        let secret: &'static Secret = Box::leak(Box::new(Secret::new(&[3; 16]).expect("long")));
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let data = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let table = Table { data, processes: Vec::new(), token: 7 };
        // Noise, half a hello, and silence.
        let mut strangers: Vec<TcpStream> = [vec![0xff; 64], b"PHALANX2".to_vec(), Vec::new()]
            .iter()
            .map(|bytes| {
                let mut stranger = TcpStream::connect(table.data[0]).expect("it listens");
                stranger.write_all(bytes).expect("it reads");
                stranger
            })
            .collect();
        // Drawn bytes, some after a right beginning.
        let mut state = 5_u64;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        for _ in 0..40 {
            let mut bytes: Vec<u8> = (0..draw() % 200).map(|_| draw() as u8).collect();
            if draw() % 2 == 0 {
                bytes.splice(0..0, [&b"PHALANX2"[..], &[1, 1, 0, 0, 0, 0, 0, 0]].concat());
            }
            let mut stranger = TcpStream::connect(table.data[0]).expect("it listens");
            // It may be closed already.
            let _ = stranger.write_all(&bytes);
            strangers.push(stranger);
        }
        // Members of another world, of a rank that does not exist, and of this rank itself, who know the secret; and one who
        // does not.
        let address = table.data[0];
        let knowing: Vec<_> = [(8_u64, 1_u64), (7, 2), (7, 0)]
            .into_iter()
            .map(|(token, rank)| {
                std::thread::spawn(move || {
                    let mut stream = TcpStream::connect(address).expect("it listens");
                    handshake::call(&mut stream, Some(secret)).expect("the secret is right");
                    for word in [token, rank, 0] {
                        stream.write_all(&word.to_le_bytes()).expect("it reads");
                    }
                    stream
                })
            })
            .collect();
        let wrong = std::thread::spawn(move || {
            let guess = Secret::new(&[4; 16]).expect("long");
            let mut stream = TcpStream::connect(address).expect("it listens");
            handshake::call(&mut stream, Some(&guess)).expect_err("the secret is wrong")
        });
        let none = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            handshake::call(&mut stream, None).expect_err("there is a secret")
        });
        let [first, second] = listeners;
        let shared = table.clone();
        let other =
            std::thread::spawn(move || mesh(1, &shared, Some(secret)).connect(&second, &Failure::default()));
        let mut own =
            mesh(0, &table, Some(secret)).connect(&first, &Failure::default()).expect("rank 1 came");
        let mut other = other.join().expect("no panic").expect("rank 0 listens");
        for (lane, text) in [b"first", b"secnd"].into_iter().enumerate() {
            other[0][lane].write_all(text).expect("connected");
            let mut heard = [0; 5];
            own[1][lane].read_exact(&mut heard).expect("connected");
            assert_eq!(&heard, text);
        }
        assert!(wrong.join().expect("no panic").contains("another than this rank's"));
        assert!(none.join().expect("no panic").contains("this rank has none"));
        strangers.extend(knowing.into_iter().map(|stranger| stranger.join().expect("no panic")));
    }

    #[test]
    fn a_failure_ends_the_wait_for_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let table = Table { data: vec![address; 3], processes: Vec::new(), token: 7 };
        let failure = Failure::default();
        failure.set(Cause::Lost(2));
        let error = mesh(0, &table, None).connect(&listener, &failure).expect_err("broken");
        assert!(error.to_string().contains("rank 2 was lost"), "{error}");
    }
}
