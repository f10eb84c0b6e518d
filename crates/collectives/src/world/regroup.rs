//! Those who are left of a world that has lost ranks meet again, in a world of their own.
//!
//! The control plane outlives the world's operations: each rank that is left tells rank 0 by it that it has come to the end of
//! what it did, rank 0 answers, once all have, who they are and where it waits for them, and they meet there as any world does.
//! Who is lost meanwhile is left out by the next attempt.

use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use super::config::WorldConfig;
use super::meet;
use crate::communicator::Communicator;
use crate::control::{Control, Watched};
use crate::error::{CommError, Result};

/// A world of those who are left of another one.
#[derive(Debug)]
pub struct Regrouped {
    /// Their communicator.
    pub communicator: Communicator,
    /// This rank's place among them.
    pub config: WorldConfig,
    /// By rank, its number in the world that broke.
    pub members: Vec<usize>,
}

/// Brings together those who are left of a world that was made by `config` and in which ranks were lost: all of them call this,
/// and keep `broken` until it returns. Ranks are numbered anew, in their order; rank 0 must be among them, because the others
/// find each other by it. Whoever is lost meanwhile is left out.
///
/// # Errors
/// [`CommError::PeerLost`] if rank 0 is lost, or one that lives does not come within [`WorldConfig::op_timeout`];
/// [`CommError::Aborted`] if the world has broken because a rank gave up, which is no loss; [`CommError::NotOffered`] between
/// threads of a process; and those of [`super::connect`].
pub fn regroup(broken: &Communicator, config: &WorldConfig) -> Result<Regrouped> {
    let control = broken.control()?;
    if let Err(error @ CommError::Aborted { .. }) = broken.check() {
        return Err(error);
    }
    let until = Instant::now() + config.op_timeout;
    loop {
        match attempt(&control, config, until) {
            Ok(regrouped) => return Ok(regrouped),
            // Only rank 0 can have lost somebody without all of it being over.
            Err(error) if Instant::now() >= until || is_final(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, "those who are left have not met; they try again"),
        }
    }
}

/// Whether another attempt would end alike.
fn is_final(error: &CommError) -> bool {
    matches!(error, CommError::NotOffered { .. } | CommError::Closed)
        || matches!(error, CommError::PeerLost { rank: 0, .. })
}

fn attempt(control: &Control, config: &WorldConfig, until: Instant) -> Result<Regrouped> {
    let io = |error: std::io::Error| config.rendezvous(format!("for those who are left: {error}"));
    let mut listener = None;
    if config.rank == 0 {
        listener = Some(TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?);
    }
    let port = listener.as_ref().map(|listener| Ok(listener.local_addr()?.port()));
    let port = port.transpose().map_err(io)?;
    let left = control.regroup(port, until.saturating_duration_since(Instant::now()))?;
    let rank = left.members.iter().position(|member| *member == config.rank);
    let rank = rank.ok_or_else(|| config.rendezvous("those who are left count this rank among the lost"))?;
    let config = WorldConfig {
        rank,
        world_size: left.members.len(),
        master_port: left.port,
        master_ports: 1,
        ..config.clone()
    };
    let communicator = meet(&config, listener, &Watched::default())?;
    Ok(Regrouped { communicator, config, members: left.members })
}
