//! Data connections: some between each two ranks, the higher rank calling the lower.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::encryption::Credentials;
use super::handshake;
use super::hello::{Hello, Plane};
use crate::control::Process;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::transport::Wire;

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
    pub(super) credentials: &'a Credentials,
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
                    let (credentials, lanes) = (self.credentials.clone(), self.lanes);
                    let introduce = move || {
                        let caller = introduced(rank, lanes, &table, &credentials, stream);
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
        let hello = Hello {
            plane: Plane::Data,
            has_secret: false,
            sealed: false,
            lane: lane as u32,
            token: self.table.token,
            caller: self.rank as u64,
            callee: rank as u64,
            world_size: self.table.data.len() as u64,
        };
        let until = deadline.max(Instant::now() + Duration::from_millis(1));
        handshake::call(stream, self.credentials, hello, until).map_err(|why| problem(rank, address, why))
    }
}

/// A caller that proves to be a higher rank of this world, or why it is refused.
fn introduced(
    own: usize,
    lanes: usize,
    table: &Table,
    credentials: &Credentials,
    stream: TcpStream,
) -> Result<Admitted, String> {
    let lost = |error: std::io::Error| format!("the connection broke: {error}");
    stream.set_nonblocking(false).map_err(lost)?;
    stream.set_nodelay(true).map_err(lost)?;
    let ranks = table.data.len() as u64;
    let is_meant = |hello: &Hello| {
        let Hello { plane, token, caller, callee, world_size, lane, .. } = *hello;
        if plane != Plane::Data {
            return Err("it came to the wrong port".to_owned());
        }
        if (token, world_size) != (table.token, ranks) {
            return Err("it means another world".to_owned());
        }
        if caller <= own as u64 || caller >= ranks || callee != own as u64 || lane as usize >= lanes {
            return Err(format!(
                "it says that it is rank {caller} and means connection {lane} of rank {callee}"
            ));
        }
        Ok(())
    };
    let (hello, wire) = handshake::answer(stream, credentials, Instant::now() + INTRODUCTION, is_meant)?;
    Ok((hello.caller as usize, hello.lane as usize, wire))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::encryption::Encryption;
    use super::super::secret::Secret;
    use super::*;
    use crate::failure::Cause;
    use crate::patience::Patience;
    use crate::transport::tcp::Tcp;
    use crate::transport::{Link, Section};

    fn with(secret: Option<u8>) -> Credentials {
        let secret = secret.map(|byte| Secret::new(&[byte; 16]).expect("long"));
        Credentials { secret, encryption: Encryption::All }
    }

    fn mesh<'a>(rank: usize, table: &Table, credentials: &'a Credentials) -> Connections<'a> {
        let timeout = Duration::from_secs(20);
        Connections { rank, table: Arc::new(table.clone()), lanes: 2, credentials, timeout }
    }

    /// Introduces itself to a rank as somebody who says this.
    fn call(
        stream: TcpStream,
        credentials: &Credentials,
        (token, caller, callee, lane): (u64, u64, u64, u32),
    ) -> Result<Wire, String> {
        let (plane, world_size) = (Plane::Data, 2);
        let hello =
            Hello { plane, has_secret: false, sealed: false, lane, token, caller, callee, world_size };
        handshake::call(stream, credentials, hello, Instant::now() + Duration::from_secs(20))
    }

    #[test]
    fn strangers_at_a_data_port_are_refused_and_harm_nothing() {
        let ours = with(Some(3));
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let data = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let table = Table { data, processes: Vec::new(), token: 7 };
        let address = table.data[0];
        // Noise, half a hello, and silence.
        let mut strangers: Vec<TcpStream> = [vec![0xff; 64], b"PHALANX3".to_vec(), Vec::new()]
            .iter()
            .map(|bytes| {
                let mut stranger = TcpStream::connect(address).expect("it listens");
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
                bytes.splice(0..0, [&b"PHALANX3"[..], &[1, 1, 1, 0]].concat());
            }
            let mut stranger = TcpStream::connect(address).expect("it listens");
            // It may be closed already.
            let _ = stranger.write_all(&bytes);
            strangers.push(stranger);
        }
        // Members of another world, of a rank that does not exist, this rank itself, one that means another rank or a connection
        // that there is not, who know the secret; and those who do not.
        let right = (7, 1, 0, 0);
        let cases = [
            (Some(3), (8, 1, 0, 0), "another world"),
            (Some(3), (7, 2, 0, 0), "another rank"),
            (Some(3), (7, 0, 0, 0), "another rank"),
            (Some(3), (7, 1, 1, 0), "another rank"),
            (Some(3), (7, 1, 0, 2), "another rank"),
            (Some(4), right, "another than this rank's"),
            (None, right, "this rank has none"),
        ];
        let refused = cases.map(|(secret, says, words)| {
            // Before rank 1, with whom the waiting ends.
            let stream = TcpStream::connect(address).expect("it listens");
            let calling = std::thread::spawn(move || call(stream, &with(secret), says).expect_err(words));
            (calling, words)
        });
        let [first, second] = listeners;
        let (shared, theirs) = (table.clone(), ours.clone());
        let other =
            std::thread::spawn(move || mesh(1, &shared, &theirs).connect(&second, &Failure::default()));
        let mut own = mesh(0, &table, &ours).connect(&first, &Failure::default()).expect("rank 1 came");
        let mut other = other.join().expect("no panic").expect("rank 0 listens");
        let patience = |failure| Patience { failure, timeout: Duration::from_secs(20) };
        let [mut own, mut other] = [own.remove(1), other.remove(0)]
            .map(|lanes| Tcp::new(lanes, patience(Arc::default())).expect("a link"));
        own.send([b"head", &[9; 200_000]]).expect("connected");
        let (mut head, mut body) = ([0; 4], vec![0; 200_000]);
        other.receive(Section::Header, &mut head).expect("connected");
        other.receive(Section::Payload, &mut body).expect("connected");
        assert!(&head == b"head" && body == [9; 200_000]);
        for (calling, words) in refused {
            let why = calling.join().expect("no panic");
            assert!(why.contains(words), "{why}");
        }
        drop(strangers);
    }

    #[test]
    fn a_failure_ends_the_wait_for_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let table = Table { data: vec![address; 3], processes: Vec::new(), token: 7 };
        let failure = Failure::default();
        failure.set(Cause::Lost(2));
        let error = mesh(0, &table, &with(None)).connect(&listener, &failure).expect_err("broken");
        assert!(error.to_string().contains("rank 2 was lost"), "{error}");
    }
}
