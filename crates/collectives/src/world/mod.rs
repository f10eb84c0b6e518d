//! Making a world out of processes: who is there, how they reach each other, who is still alive.

mod config;
mod connect;
mod doors;
mod encryption;
mod environment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod handshake;
mod hello;
mod host;
mod interface;
mod mail;
mod noise;
mod pmi;
mod processes;
mod regroup;
mod rendezvous;
mod scontrol;
mod search;
mod secret;
#[cfg(test)]
mod tampering;
mod threads;

pub use config::WorldConfig;
pub use encryption::Encryption;
pub use environment::Launcher;
pub use regroup::{Newcomers, Regrouped, regroup, regroup_with};
pub use secret::Secret;
pub use threads::{threads, threads_over};

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::RecvTimeoutError;

use crate::algorithms::gathered;
use crate::communicator::Communicator;
use crate::control::Watched;
use crate::engine::{Backend, Ending, Shared};
use crate::error::{CommError, Result};
use crate::failure::Cause;
use crate::flight::FlightWriter;
use crate::mailbox::Inbox;
use crate::patience::Patience;
use crate::simulated::Port;
use doors::Key;
use encryption::Credentials;
use mail::{Post, ProcessMail};
use processes::Process;

/// How often a rank that connects is asked whether it still wants to.
const ASKING: Duration = Duration::from_millis(10);

/// Joins a world of processes over TCP. Returns when all ranks have met and are connected to each other.
///
/// # Errors
/// [`CommError::Missing`] naming the ranks that did not come in time, [`CommError::Rendezvous`] if the meeting
/// place cannot be opened or reached or refuses this rank.
pub fn connect(config: &WorldConfig) -> Result<Communicator> {
    meet(config, listen(config)?, &Watched::default())
}

/// Joins a world of processes whose rank 0 has its meeting place already open: for launchers that choose a free port. On the
/// other ranks `listener` is `None`.
///
/// # Errors
/// [`CommError::Missing`] naming the ranks that did not come in time, [`CommError::Rendezvous`] if the meeting
/// place cannot be reached or refuses this rank.
pub fn connect_with_listener(config: &WorldConfig, listener: Option<TcpListener>) -> Result<Communicator> {
    meet(config, listener, &Watched::default())
}

/// Joins a world of processes over TCP as [`connect`] does, and gives up soon after `cancelled` says so, which is asked again
/// and again until the ranks are connected: for programs that can be told to end.
///
/// # Errors
/// Those of [`connect`], and [`CommError::Cancelled`].
pub fn connect_unless(
    config: &WorldConfig,
    cancelled: impl Fn() -> bool + Send + Sync,
) -> Result<Communicator> {
    let watched = Watched::default();
    let failure = watched.failure.clone();
    let (connected, waiting) = crossbeam_channel::bounded::<()>(0);
    let (met, was_cancelled) = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while waiting.recv_timeout(ASKING) == Err(RecvTimeoutError::Timeout) {
                if cancelled() {
                    // A world that is broken ends every wait.
                    return failure.set(Cause::Aborted(config.rank, "it was told to end".to_owned()));
                }
            }
            false
        });
        let met = listen(config).and_then(|listener| meet(config, listener, &watched));
        drop(connected);
        (met, watch.join().unwrap_or(false))
    });
    match met {
        Err(CommError::Cancelled { address, during }) => Err(CommError::Cancelled { address, during }),
        _ if was_cancelled => Err(config.cancelled("while the ranks met")),
        met => met,
    }
}

/// Rank 0's meeting place: the first free one of the ports where it may be.
fn listen(config: &WorldConfig) -> Result<Option<TcpListener>> {
    if config.rank != 0 {
        return Ok(None);
    }
    let is_name = config.master_addr.parse::<IpAddr>().is_err() && config.master_addr != "localhost";
    let at = interface::meeting(config.bind_addr, config.master_address()?.ip(), is_name);
    let bind = |port| TcpListener::bind(SocketAddr::new(at, port));
    let mut last = None;
    for port in config.ports() {
        match bind(port) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) => last = Some(error),
        }
    }
    let (first, end) = config.ports().into_inner();
    let ports = if first == end { format!("{first}") } else { format!("any of the ports {first} to {end}") };
    let why = last.map_or_else(String::new, |error| error.to_string());
    Err(config.rendezvous(format!(
        "cannot listen on {at} at {ports}: {why}; PHALANX_PORT chooses another port for all ranks"
    )))
}

/// Meets the other ranks, at `listener` if this is rank 0, and connects to each.
fn meet(config: &WorldConfig, listener: Option<TcpListener>, watched: &Watched) -> Result<Communicator> {
    config.validate()?;
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    let data = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
    let Watched { failure, recorder, .. } = watched.clone();
    let (callers, calling) = tokio::sync::mpsc::unbounded_channel();
    let (control, table) =
        rendezvous::meet(config, listener, data.local_addr().map_err(io)?, watched.clone(), calling)?;
    let addresses = table.data.iter().map(SocketAddr::ip).collect();
    let connector = Process { config: config.clone(), addresses, token: table.token };
    let port = config.link.map(|link| Arc::new(Port::new(link)));
    let inside = config.host_link.map(|link| Arc::new(Port::new(link)));
    let post = Post {
        inbox: Inbox::new(config.rank, failure.clone(), port.clone()),
        addresses: table.data.clone(),
        key: config.key(table.token),
        callers,
    };
    let credentials = config.credentials();
    let everybody = table.processes.clone();
    let connections = connect::Connections {
        rank: config.rank,
        table: Arc::new(table),
        lanes: config.streams,
        credentials: &credentials,
        timeout: config.connect_timeout,
    };
    let streams = connections.connect(&data, &failure)?;
    let timeout = config.op_timeout;
    let links = processes::links(config, streams, &Patience { failure: failure.clone(), timeout })?;
    let control = Arc::new(control);
    // All connections for operations are there, so that whoever still comes to the port has a message.
    let mail = ProcessMail::begin(post, data, &control, timeout)?;
    let flight = config
        .flight_recorder
        .clone()
        .map(|folder| FlightWriter::of(folder, (config.rank, host::name(config)), everybody, watched));
    let shared = Shared {
        failure,
        control,
        recorder,
        timeout,
        port,
        inside,
        mail,
        connector: Arc::new(connector),
        flight,
    };
    let ending = Ending::of_world(&shared, config.rank);
    let mut backend = Backend::new(config.rank, 0, (0..config.world_size).collect(), links, shared);
    backend.costs = config.costs;
    crate::engine::agree(&mut backend, &host::name(config), config.shared_memory)?;
    if config.link.is_some() {
        on_one_machine(config, &mut backend)?;
    }
    Communicator::start(Box::new(backend.over_simulated_link()), config.local_rank, config.algorithm, ending)
        .map_err(io)
}

/// Refuses ranks on several machines, whose clocks differ. Every rank comes here at the same place.
fn on_one_machine(config: &WorldConfig, backend: &mut Backend) -> Result<()> {
    let all = backend.everybody();
    let machines = gathered::all_gather(backend, &all, host::machine(config).as_bytes())?;
    match machines.iter().position(|machine| *machine != machines[0]) {
        None => Ok(()),
        Some(rank) => Err(CommError::Argument {
            operation: "connect",
            problem: format!(
                "ranks 0 and {rank} are on different machines; a simulated link is for ranks of one machine"
            ),
        }),
    }
}

impl WorldConfig {
    /// What connections of this world have to show.
    fn credentials(&self) -> Credentials {
        Credentials { secret: self.secret.clone(), encryption: self.encryption }
    }

    /// What this rank needs to call others of the world with this token, and to be called.
    fn key(&self, token: u64) -> Key {
        Key { own: self.rank, world_size: self.world_size, token, credentials: self.credentials() }
    }

    /// Where ranks meet, for errors.
    fn meeting(&self) -> String {
        format!("{}:{}", self.master_addr, self.master_port)
    }

    /// An error of the meeting place.
    fn rendezvous(&self, problem: impl Into<String>) -> CommError {
        CommError::Rendezvous { address: self.meeting(), problem: problem.into() }
    }

    /// The error of a rank that no longer wants to meet.
    fn cancelled(&self, during: impl Into<String>) -> CommError {
        CommError::Cancelled { address: self.meeting(), during: during.into() }
    }
}
