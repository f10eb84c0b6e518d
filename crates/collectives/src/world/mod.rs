//! Worlds of processes and of threads.

#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod mail;
mod processes;
mod rejoin;
#[cfg(test)]
mod tampering;
mod threads;

pub use rejoin::{Newcomers, RebuiltWorld, rejoin, rejoin_with};
pub use threads::{threads, threads_over};

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::RecvTimeoutError;

use crate::algorithms::gathered;
use crate::communicator::Communicator;
use crate::config::WorldConfig;
use crate::control::{Process, RankState};
use crate::engine::{Backend, ExitActions, Shared};
use crate::error::{CommError, Result};
use crate::failure::Cause;
use crate::flight::FlightWriter;
use crate::mailbox::Inbox;
use crate::rendezvous::{self, DataConnections, RankTable, WorldIdentity, host_name, machine_name};
use crate::simulated::Port;
use crate::transport::Links;
use crate::waiting::WaitLimits;
use mail::{MailOptions, ProcessMail};
use processes::ProcessConnector;

/// The time between two calls of the closure of [`connect_unless`].
const ASKING: Duration = Duration::from_millis(10);

/// The time after which missing ranks are named.
const FIRST_REPORT: Duration = Duration::from_secs(3);

/// The time after which they are named again.
const FURTHER_REPORT: Duration = Duration::from_secs(10);

/// Joins a world of processes over TCP. Returns when all ranks have registered and are connected to each other.
///
/// # Errors
/// [`CommError::Missing`] names the ranks that did not come in time. [`CommError::Rendezvous`] if rank 0 cannot be reached, cannot
/// listen, or refuses this rank.
pub fn connect(config: &WorldConfig) -> Result<Communicator> {
    build(config, listen(config)?, &RankState::default())
}

/// Joins a world of processes whose rank 0 listens already, for launchers that choose a free port. On the other ranks `listener` is
/// `None`.
///
/// # Errors
/// [`CommError::Missing`] names the ranks that did not come in time. [`CommError::Rendezvous`] if rank 0 cannot be reached or refuses
/// this rank.
pub fn connect_with_listener(config: &WorldConfig, listener: Option<TcpListener>) -> Result<Communicator> {
    build(config, listener, &RankState::default())
}

/// Joins a world of processes as [`connect`] does, for programs that can be cancelled. `cancelled` is called repeatedly until the ranks
/// are connected.
///
/// # Errors
/// Errors of [`connect`], and [`CommError::Cancelled`] soon after `cancelled` returns true.
pub fn connect_unless(
    config: &WorldConfig,
    cancelled: impl Fn() -> bool + Send + Sync,
) -> Result<Communicator> {
    connect_watched(config, cancelled, |_| {})
}

/// Joins a world of processes as [`connect_unless`] does, for programs that show what they wait for. `waiting` is called with a
/// description of the missing ranks after three seconds, and then every ten: on rank 0 with all of them, on other ranks while they look
/// for rank 0.
///
/// # Errors
/// Errors of [`connect_unless`].
pub fn connect_watched(
    config: &WorldConfig,
    cancelled: impl Fn() -> bool + Send + Sync,
    waiting: impl Fn(&str) + Send + Sync,
) -> Result<Communicator> {
    let state = RankState::default();
    let (failure, meeting) = (state.failure.clone(), state.meeting.clone());
    let (since, mut next_report) = (Instant::now(), FIRST_REPORT);
    let (connected, is_connected) = crossbeam_channel::bounded::<()>(0);
    let (built, was_cancelled) = std::thread::scope(|scope| {
        let watch = scope.spawn(move || {
            while is_connected.recv_timeout(ASKING) == Err(RecvTimeoutError::Timeout) {
                if cancelled() {
                    // A broken world ends every wait.
                    return failure.set(Cause::Aborted(config.rank, "it was told to end".to_owned()));
                }
                if since.elapsed() < next_report {
                    continue;
                }
                next_report += FURTHER_REPORT;
                if let Some(text) =
                    meeting.describe(&config.meeting_text(), config.world_size, config.local_world_size)
                {
                    waiting(&format!("{text} (since {} s)", since.elapsed().as_secs()));
                }
            }
            false
        });
        let built = listen(config).and_then(|listener| build(config, listener, &state));
        drop(connected);
        (built, watch.join().unwrap_or(false))
    });
    match built {
        Err(CommError::Cancelled { address, during }) => Err(CommError::Cancelled { address, during }),
        _ if was_cancelled => Err(config.cancelled("during the rendezvous")),
        built => built,
    }
}

/// Opens rank 0's listener at the first free one of its ports.
fn listen(config: &WorldConfig) -> Result<Option<TcpListener>> {
    if config.rank != 0 {
        return Ok(None);
    }
    let at = config.registration_ip()?;
    let mut last = None;
    for port in config.ports() {
        match TcpListener::bind(SocketAddr::new(at, port)) {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) => last = Some(error),
        }
    }
    let (first, end) = config.ports().into_inner();
    let ports = if first == end { format!("{first}") } else { format!("any of the ports {first} to {end}") };
    let why = last.map_or_else(String::new, |error| error.to_string());
    Err(config.rendezvous_error(format!(
        "cannot listen on {at} at {ports}: {why}; choose another port for all ranks by PHALANX_PORT"
    )))
}

/// Registers with rank 0, connects to all ranks, and starts the communicator. `listener` is rank 0's.
fn build(config: &WorldConfig, listener: Option<TcpListener>, state: &RankState) -> Result<Communicator> {
    config.validate()?;
    let io = |error: std::io::Error| config.rendezvous_error(error.to_string());
    let data = TcpListener::bind(SocketAddr::new(config.meeting.bind_addr, 0)).map_err(io)?;
    let (callers, calling) = tokio::sync::mpsc::unbounded_channel();
    let address = data.local_addr().map_err(io)?;
    let (control, table) = rendezvous::register(config, listener, address, state.clone(), calling)?;
    let table = Arc::new(table);
    let connections = DataConnections {
        rank: config.rank,
        table: table.clone(),
        lanes: config.transport.streams,
        credentials: &config.credentials,
        timeout: config.timeouts.connect,
    };
    let wires = connections.connect(&data, &state.failure)?;
    let timeout = config.timeouts.operation;
    let links = processes::links(config, wires, &WaitLimits { failure: state.failure.clone(), timeout })?;
    let control = Arc::new(control);
    let port = config.transport.simulated.map(|link| Arc::new(Port::new(link)));
    let options = MailOptions {
        inbox: Inbox::new(config.rank, state.failure.clone(), port.clone()),
        addresses: table.data.clone(),
        identity: WorldIdentity::new(config, table.token),
        callers,
    };
    // All data connections exist, so later callers at this port bring messages.
    let mail = ProcessMail::start(options, data, &control, timeout)?;
    let shared = Shared {
        failure: state.failure.clone(),
        control,
        recorder: state.recorder.clone(),
        timeout,
        port,
        inside: config.transport.simulated_on_host.map(|link| Arc::new(Port::new(link))),
        mail,
        connector: Arc::new(connector(config, &table)),
        flight: flight_writer(config, &table.processes, state),
    };
    start(config, links, shared)
}

/// Returns the connector of communicators of some of the ranks.
fn connector(config: &WorldConfig, table: &RankTable) -> ProcessConnector {
    let addresses = table.data.iter().map(SocketAddr::ip).collect();
    ProcessConnector { config: config.clone(), addresses, token: table.token }
}

/// Returns the writer of this rank's flight record, if one is wanted.
fn flight_writer(
    config: &WorldConfig,
    processes: &[Process],
    state: &RankState,
) -> Option<Arc<FlightWriter>> {
    let folder = config.flight_recorder.clone()?;
    Some(FlightWriter::of(folder, (config.rank, host_name(config)), processes.to_vec(), state))
}

/// Starts the communicator over established links. Every rank does this at the same place.
fn start(config: &WorldConfig, links: Links, shared: Shared) -> Result<Communicator> {
    let ending = ExitActions::of_world(&shared, config.rank);
    let mut backend = Backend::new(config.rank, 0, (0..config.world_size).collect(), links, shared);
    backend.costs = config.costs;
    crate::engine::agree(&mut backend, &host_name(config), config.transport.shared_memory)?;
    if config.transport.simulated.is_some() {
        check_one_machine(config, &mut backend)?;
    }
    let engine = Box::new(backend.over_simulated_link());
    Communicator::start(engine, config.local_rank, config.algorithm, ending)
        .map_err(|error| config.rendezvous_error(error.to_string()))
}

/// Refuses ranks on several machines, whose clocks differ. Every rank calls this at the same place.
fn check_one_machine(config: &WorldConfig, backend: &mut Backend) -> Result<()> {
    let all = backend.all_ranks();
    let machines = gathered::all_gather(backend, &all, machine_name(config).as_bytes())?;
    match machines.iter().position(|machine| *machine != machines[0]) {
        None => Ok(()),
        Some(rank) => Err(CommError::Argument {
            operation: "connect",
            problem: format!(
                "ranks 0 and {rank} are on different machines; a simulated link needs all ranks on one machine"
            ),
        }),
    }
}
