//! Making a world out of processes: who is there, how they reach each other, who is still alive.

mod config;
mod control;
mod environment;
mod frame;
mod mesh;
mod rendezvous;

pub(crate) use config::DEFAULT_OP_TIMEOUT;
pub use config::WorldConfig;
pub(crate) use control::Control;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::transport::tcp::Tcp;

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

/// As [`connect`], with rank 0's meeting place already open: for launchers that choose a free port.
///
/// # Errors
/// As [`connect`].
pub fn connect_with_listener(config: &WorldConfig, listener: Option<TcpListener>) -> Result<Communicator> {
    config.validate()?;
    let io = |error: std::io::Error| config.rendezvous(error.to_string());
    let data = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
    let failure: Arc<Failure> = Arc::default();
    let (control, table) =
        rendezvous::meet(config, listener, data.local_addr().map_err(io)?, failure.clone())?;
    let control = Arc::new(control);
    let streams = mesh::connect_all(config, &data, &table, &failure)?;
    let transport = Tcp::new(streams, &failure, config.op_timeout).map_err(io)?;
    let transport = Box::new(transport);
    let engine =
        Engine::new(config.rank, config.world_size, transport, failure, control.clone(), config.op_timeout);
    let comm = Communicator::start(config.local_rank, engine, control).map_err(io)?;
    #[cfg(target_os = "linux")]
    if config.shared_memory {
        comm.share(crate::shared::agree(&comm)?);
    }
    Ok(comm)
}

impl WorldConfig {
    /// An error of the meeting place.
    fn rendezvous(&self, problem: impl Into<String>) -> CommError {
        let address = format!("{}:{}", self.master_addr, self.master_port);
        CommError::Rendezvous { address, problem: problem.into() }
    }
}
