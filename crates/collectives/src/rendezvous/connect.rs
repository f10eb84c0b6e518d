//! Data connections: some between each pair of ranks, opened by the higher rank.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};

use super::introductions::{GRACE, PAUSE, RefusalLog, most_introductions};
use super::table::RankTable;
use super::timeouts::INTRODUCTION;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::security::{self, Credentials, Hello, Purpose};
use crate::transport::Wire;

/// The most introductions at a time.
const MOST_INTRODUCTIONS: usize = 64;

/// The parameters of a rank's data connections.
pub(crate) struct DataConnections<'a> {
    pub(crate) rank: usize,
    pub(crate) table: Arc<RankTable>,
    /// Connections between each pair of ranks.
    pub(crate) lanes: usize,
    pub(crate) credentials: &'a Credentials,
    pub(crate) timeout: Duration,
}

/// An accepted data connection.
struct Admitted {
    rank: usize,
    lane: usize,
    wire: Wire,
}

fn problem(rank: usize, address: SocketAddr, problem: impl std::fmt::Display) -> CommError {
    CommError::Rendezvous { address: address.to_string(), problem: format!("rank {rank}: {problem}") }
}

impl DataConnections<'_> {
    /// Connects this rank to all others. Returns the connections by rank, in the same order on both sides.
    pub(crate) fn connect(&self, listener: &TcpListener, failure: &Failure) -> Result<Vec<Vec<Wire>>> {
        let world = self.table.data.len();
        let deadline = Instant::now() + self.timeout;
        let mut wires: Vec<Vec<Option<Wire>>> =
            (0..world).map(|_| (0..self.lanes).map(|_| None).collect()).collect();
        for (rank, address) in self.table.data.iter().enumerate().take(self.rank) {
            for (lane, place) in wires[rank].iter_mut().enumerate() {
                *place = Some(self.call(rank, *address, lane, deadline)?);
            }
        }
        let own = self.table.data[self.rank];
        listener.set_nonblocking(true).map_err(|error| problem(self.rank, own, error))?;
        let mut introductions = Introductions::new();
        while let Some(missing) = (self.rank + 1..world).find(|rank| wires[*rank].iter().any(Option::is_none))
        {
            introductions.collect(&mut wires);
            match introductions.accept(listener) {
                Ok((stream, from)) => self.introduce(&mut introductions, stream, from),
                Err(error) => {
                    if error.kind() != ErrorKind::WouldBlock {
                        introductions.pause_after(&error);
                    }
                    if let Some(cause) = failure.get() {
                        return Err(problem(self.rank, own, format!("while ranks connected: {cause}")));
                    }
                    if Instant::now() > deadline {
                        let late = format!("rank {missing} did not connect for data");
                        return Err(problem(self.rank, own, late));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
        Ok(wires.into_iter().map(|lanes| lanes.into_iter().flatten().collect()).collect())
    }

    /// Introduces a caller on a thread of its own, so that a silent stranger delays no rank.
    fn introduce(&self, introductions: &mut Introductions, stream: TcpStream, from: SocketAddr) {
        let expected = ExpectedCallers {
            own: self.rank,
            lanes: self.lanes,
            table: self.table.clone(),
            credentials: self.credentials.clone(),
        };
        let (results, refusals) = (introductions.sender.clone(), introductions.refusals.clone());
        let spawned = introductions.begin(&stream).and_then(|number| {
            let run = move || {
                let outcome = expected.introduce(stream);
                if let Err(reason) = &outcome {
                    refusals.add(&from, reason);
                }
                let _ = results.send(Outcome { number, admitted: outcome.ok() });
            };
            std::thread::Builder::new().name("phalanx-accept".into()).spawn(run)
        });
        if let Err(error) = spawned {
            // The caller may call again.
            introductions.pause_after(&error);
        }
    }

    fn call(&self, rank: usize, address: SocketAddr, lane: usize, deadline: Instant) -> Result<Wire> {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let io = |error: std::io::Error| problem(rank, address, error);
        let stream = TcpStream::connect_timeout(&address, left).map_err(io)?;
        stream.set_nodelay(true).map_err(io)?;
        let hello = Hello {
            lane: lane as u32,
            token: self.table.token,
            ..Hello::between(Purpose::Data, self.rank, rank, self.table.data.len())
        };
        let until = deadline.max(Instant::now() + Duration::from_millis(1));
        security::call(stream, self.credentials, hello, until).map_err(|why| problem(rank, address, why))
    }
}

/// Introductions that are under way, and their results.
struct Introductions {
    sender: Sender<Outcome>,
    results: Receiver<Outcome>,
    /// The oldest first.
    open: VecDeque<OpenIntroduction>,
    begun: u64,
    most: usize,
    refusals: Arc<RefusalLog>,
}

/// The result of an introduction: `None` for a refused caller.
struct Outcome {
    number: u64,
    admitted: Option<Admitted>,
}

/// An introduction that has not ended.
struct OpenIntroduction {
    number: u64,
    since: Instant,
    stream: TcpStream,
}

impl Introductions {
    fn new() -> Self {
        let (sender, results) = crossbeam_channel::unbounded();
        let refusals = Arc::new(RefusalLog::new("data connections"));
        let most = most_introductions(MOST_INTRODUCTIONS);
        Self { sender, results, open: VecDeque::new(), begun: 0, most, refusals }
    }

    /// Accepts a caller. If too many introductions are under way, ends the oldest, and the caller waits.
    fn accept(&self, listener: &TcpListener) -> std::io::Result<(TcpStream, SocketAddr)> {
        if self.open.len() < self.most {
            return listener.accept();
        }
        self.end_oldest();
        Err(ErrorKind::WouldBlock.into())
    }

    /// Records an introduction that begins. Returns its number.
    fn begin(&mut self, stream: &TcpStream) -> std::io::Result<u64> {
        self.begun += 1;
        let open =
            OpenIntroduction { number: self.begun, since: Instant::now(), stream: stream.try_clone()? };
        self.open.push_back(open);
        Ok(self.begun)
    }

    /// Ends the oldest introduction, unless it is young: its thread sees that the connection is closed.
    fn end_oldest(&self) {
        if let Some(oldest) = self.open.front().filter(|oldest| oldest.since.elapsed() > GRACE) {
            let _ = oldest.stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends the oldest introduction and pauses after an error of the system, such as that no descriptor is left.
    fn pause_after(&self, error: &std::io::Error) {
        self.refusals.add(&"an unknown address", &format!("accepting failed: {error}"));
        self.end_oldest();
        std::thread::sleep(PAUSE);
    }

    /// Stores the connections whose introductions have ended.
    fn collect(&mut self, wires: &mut [Vec<Option<Wire>>]) {
        while let Ok(Outcome { number, admitted }) = self.results.try_recv() {
            self.open.retain(|open| open.number != number);
            let Some(Admitted { rank, lane, wire }) = admitted else { continue };
            match wires[rank].get_mut(lane) {
                Some(place @ None) => *place = Some(wire),
                _ => tracing::warn!(rank, lane, "refused a data connection that exists already"),
            }
        }
    }
}

/// The ranks whose data connections this rank accepts.
struct ExpectedCallers {
    own: usize,
    lanes: usize,
    table: Arc<RankTable>,
    credentials: Credentials,
}

impl ExpectedCallers {
    /// Shakes hands with a caller.
    ///
    /// # Errors
    /// The reason why the caller is refused.
    fn introduce(&self, stream: TcpStream) -> Result<Admitted, String> {
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        stream.set_nonblocking(false).map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let until = Instant::now() + INTRODUCTION;
        let check = |hello: &Hello| self.check(hello);
        let (hello, wire) = security::answer(stream, &self.credentials, until, check)?;
        Ok(Admitted { rank: hello.caller as usize, lane: hello.lane as usize, wire })
    }

    /// Checks that a caller is a higher rank of this world and calls this rank.
    fn check(&self, hello: &Hello) -> Result<(), String> {
        let (own, ranks) = (self.own as u64, self.table.data.len() as u64);
        let Hello { purpose, token, caller, callee, world_size, lane, .. } = *hello;
        if purpose != Purpose::Data {
            return Err("it called the wrong port".to_owned());
        }
        if (token, world_size) != (self.table.token, ranks) {
            return Err("it belongs to another world".to_owned());
        }
        if caller <= own || caller >= ranks || callee != own || lane as usize >= self.lanes {
            return Err(format!(
                "it claims to be rank {caller} and calls connection {lane} of rank {callee}"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::failure::Cause;
    use crate::security::{Encryption, Secret};
    use crate::transport::tcp::Tcp;
    use crate::transport::{Link, Section};
    use crate::waiting::WaitLimits;

    fn with(secret: Option<u8>) -> Credentials {
        let secret = secret.map(|byte| Secret::new(&[byte; 16]).expect("long"));
        Credentials { secret, encryption: Encryption::All }
    }

    fn mesh<'a>(rank: usize, table: &RankTable, credentials: &'a Credentials) -> DataConnections<'a> {
        let timeout = Duration::from_secs(20);
        DataConnections { rank, table: Arc::new(table.clone()), lanes: 2, credentials, timeout }
    }

    /// Introduces itself to a rank with these claims.
    fn call(
        stream: TcpStream,
        credentials: &Credentials,
        (token, caller, callee, lane): (u64, u64, u64, u32),
    ) -> Result<Wire, String> {
        let hello = Hello { lane, token, caller, callee, ..Hello::between(Purpose::Data, 0, 0, 2) };
        security::call(stream, credentials, hello, Instant::now() + Duration::from_secs(20))
    }

    #[test]
    fn strangers_at_a_data_port_are_refused_and_harm_nothing() {
        let ours = with(Some(3));
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let data = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let table = RankTable { data, processes: Vec::new(), token: 7 };
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
        // More silent ones than may introduce themselves at a time.
        let silent = (0..MOST_INTRODUCTIONS + 6).map(|_| TcpStream::connect(address).expect("it listens"));
        strangers.extend(silent);
        // Random bytes, some after a valid beginning.
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
        // Callers that know the secret: of another world, of a rank that does not exist, of this rank, to another rank, and to a
        // connection that does not exist. The last two do not know the secret.
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
            // Before rank 1, whose connections end the wait.
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
        let limits = |failure| WaitLimits { failure, timeout: Duration::from_secs(20) };
        let [mut own, mut other] = [own.remove(1), other.remove(0)]
            .map(|lanes| Tcp::new(lanes, limits(Arc::default())).expect("a link"));
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
        let table = RankTable { data: vec![address; 3], processes: Vec::new(), token: 7 };
        let failure = Failure::default();
        failure.set(Cause::Lost(2));
        let error = mesh(0, &table, &with(None)).connect(&listener, &failure).expect_err("broken");
        assert!(error.to_string().contains("rank 2 was lost"), "{error}");
    }
}
