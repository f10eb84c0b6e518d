//! Making a world out of processes: who is there, how they reach each other, who is still alive.

mod config;
mod connect;
mod environment;
mod handshake;
mod host;
mod interface;
mod mail;
mod processes;
mod rendezvous;
mod secret;
mod threads;
mod tls;

pub use config::WorldConfig;
pub use secret::Secret;
pub use threads::threads;
pub use tls::Tls;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::control::Watched;
use crate::engine::{Backend, Ending, Shared};
use crate::error::{CommError, Result};
use crate::mailbox::Inbox;
use crate::patience::Patience;
use mail::{Post, ProcessMail};
use processes::Process;

/// Joins a world of processes over TCP. Returns when all ranks have met and are connected to each other.
///
/// # Errors
/// [`CommError::Missing`] naming the ranks that did not come in time, [`CommError::Rendezvous`] if the meeting
/// place cannot be opened or reached or refuses this rank.
pub fn connect(config: &WorldConfig) -> Result<Communicator> {
    let listener = if config.rank == 0 {
        let address = config.master_address()?;
        let bind = SocketAddr::new(config.bind_addr, address.port());
        Some(
            TcpListener::bind(bind)
                .map_err(|error| config.rendezvous(format!("cannot listen on {bind}: {error}")))?,
        )
    } else {
        None
    };
    connect_with_listener(config, listener)
}

/// Joins a world of processes whose rank 0 has its meeting place already open: for launchers that choose a free port. On the
/// other ranks `listener` is `None`.
///
/// # Errors
/// [`CommError::Missing`] naming the ranks that did not come in time, [`CommError::Rendezvous`] if the meeting
/// place cannot be reached or refuses this rank.
pub fn connect_with_listener(config: &WorldConfig, listener: Option<TcpListener>) -> Result<Communicator> {
    config.validate()?;
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    let data = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
    let watched = Watched::default();
    let Watched { failure, recorder, .. } = watched.clone();
    let (control, table) = rendezvous::meet(config, listener, data.local_addr().map_err(io)?, watched)?;
    let connector =
        Process { config: config.clone(), address: table.data[config.rank].ip(), token: table.token };
    let tls = config.tls_configs()?;
    let post = Post {
        inbox: Inbox::new(config.rank, failure.clone()),
        addresses: table.data.clone(),
        token: table.token,
        secret: config.secret.clone(),
        tls: tls.clone(),
    };
    let connections = connect::Connections {
        rank: config.rank,
        table: Arc::new(table),
        lanes: config.streams,
        secret: config.secret.as_ref(),
        tls: tls.as_ref(),
        timeout: config.connect_timeout,
    };
    let streams = connections.connect(&data, &failure)?;
    let timeout = config.op_timeout;
    let links = processes::links(config, streams, &Patience { failure: failure.clone(), timeout })?;
    let control = Arc::new(control);
    // All connections for operations are there, so that whoever still comes to the port has a message.
    let mail = ProcessMail::begin(post, data, &control, timeout)?;
    let shared = Shared {
        failure,
        control,
        recorder,
        timeout,
        mail,
        connector: Arc::new(connector),
        dump: config.flight_recorder.clone(),
    };
    let ending = Ending::of_world(&shared, config.rank);
    let mut backend = Backend::new(config.rank, 0, (0..config.world_size).collect(), links, shared);
    backend.costs = config.costs;
    crate::engine::agree(&mut backend, &host::name(config), config.shared_memory)?;
    Communicator::start(Box::new(backend), config.local_rank, config.algorithm, ending).map_err(io)
}

impl WorldConfig {
    /// What encrypted connections show and ask for, if connections are encrypted.
    fn tls_configs(&self) -> Result<Option<tls::TlsConfigs>> {
        self.tls.as_ref().map(tls::TlsConfigs::read).transpose()
    }

    /// An error of the meeting place.
    fn rendezvous(&self, problem: impl Into<String>) -> CommError {
        let address = format!("{}:{}", self.master_addr, self.master_port);
        CommError::Rendezvous { address, problem: problem.into() }
    }
}
