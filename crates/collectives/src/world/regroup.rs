//! Those who are left of a world that has lost ranks meet again, in a world of their own.
//!
//! The control plane outlives the world's operations: each rank that is left tells its hub that it has come to the end of what it
//! did, the hub answers, once all have, who they are and where it waits for them, and they meet there as any world does. The hub
//! is rank 0, and if that is lost the lowest rank that lives, at whose door the others have knocked. Who is lost meanwhile is left
//! out by the next attempt.
//!
//! Newcomers can be met in the same way, by a world that has lost nobody, too: the hub says where it waits and which ranks are to
//! come, and whoever has heard of it comes there as one of these ranks.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::config::WorldConfig;
use super::{interface, meet};
use crate::communicator::Communicator;
use crate::control::{Control, Watched};
use crate::error::{CommError, Result};
use crate::failure::Cause;

/// A world of those who are left of another one.
#[derive(Debug)]
pub struct Regrouped {
    /// Their communicator.
    pub communicator: Communicator,
    /// This rank's place among them.
    pub config: WorldConfig,
    /// By rank, its number in the world that broke, as far as the rank was there. Newcomers come after these.
    pub members: Vec<usize>,
}

/// Those who are to come to the members of a world.
pub struct Newcomers<'a> {
    /// How many; every member says as many.
    pub count: usize,
    /// How long they are waited for; after that the members meet without them.
    pub patience: Duration,
    /// Called on the rank that the others meet at, with the place of the first newcomer: the next ones follow in rank. It has to let
    /// the newcomers know, who then [`super::connect`] by it.
    pub announce: &'a dyn Fn(&WorldConfig),
}

impl std::fmt::Debug for Newcomers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Newcomers").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Brings together those who are left of a world that was made by `config` and in which ranks were lost: all of them call this,
/// and keep `broken` until it returns. Ranks are numbered anew, in their order, so that the lowest that is left is rank 0. Whoever
/// is lost meanwhile is left out.
///
/// No two groups that cannot reach each other go on: those who are left must be more than those whom they cannot reach, or as
/// many, with the lowest rank of all. A rank of the same machine whose process has ended is not counted (Linux), so that on one
/// machine any number may be killed.
///
/// # Errors
/// [`CommError::Minority`] if too few are left to tell that the others do not go on without them; [`CommError::LeftOut`] if they
/// do; [`CommError::Unmet`] if a rank that lives does not come within [`WorldConfig::op_timeout`]; [`CommError::Closed`] if the
/// hub has left; [`CommError::Aborted`] if the world has broken because a rank gave up, which is no loss;
/// [`CommError::NotOffered`] between threads of a process; and those of [`super::connect`].
pub fn regroup(broken: &Communicator, config: &WorldConfig) -> Result<Regrouped> {
    regroup_with(broken, config, None)
}

/// Brings together the members of a world, of which some may be lost, as [`regroup`] does, and newcomers with them. All members call
/// this, with as many newcomers, and keep `world` until it returns. If the newcomers do not come, or a member is lost meanwhile, the
/// members meet without them.
///
/// # Errors
/// Those of [`regroup`].
pub fn regroup_with(
    world: &Communicator,
    config: &WorldConfig,
    mut newcomers: Option<&Newcomers<'_>>,
) -> Result<Regrouped> {
    let control = world.control()?;
    if let Err(error @ CommError::Aborted { .. }) = world.check() {
        return Err(error);
    }
    let until = Instant::now() + config.op_timeout;
    loop {
        match attempt(&control, config, until, newcomers.take()) {
            Ok(regrouped) => return Ok(regrouped),
            Err(error) if Instant::now() >= until || is_final(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, "those who are left have not met; they try again"),
        }
    }
}

/// Whether another attempt would end alike.
fn is_final(error: &CommError) -> bool {
    matches!(
        error,
        CommError::NotOffered { .. }
            | CommError::Closed
            | CommError::Minority { .. }
            | CommError::LeftOut { .. }
            | CommError::Unmet { .. }
    )
}

/// By what newcomers, who may be on any host, know the rank that all meet at and that listens at this address.
fn from_beyond(config: &WorldConfig, at: IpAddr) -> String {
    if !at.is_unspecified() {
        return at.to_string();
    }
    // The name that members know it by, unless that is meant for its own host.
    let name = &config.master_addr;
    let own = name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    if own { interface::beyond(at).to_string() } else { name.clone() }
}

fn attempt(
    control: &Control,
    config: &WorldConfig,
    until: Instant,
    newcomers: Option<&Newcomers<'_>>,
) -> Result<Regrouped> {
    let io = |error: std::io::Error| config.rendezvous(format!("for those who are left: {error}"));
    // Whether this rank is the hub is known when all have asked.
    let listener = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let left = control.regroup(port, until.saturating_duration_since(Instant::now()))?;
    let rank = left.members.iter().position(|member| *member == config.rank);
    let rank = rank.ok_or_else(|| config.rendezvous("those who are left count this rank among the lost"))?;
    // What took a member may have taken newcomers, and those who are left go on at once. All of them see who is missing.
    let newcomers = newcomers.filter(|_| left.members.len() == config.world_size);
    let connect_timeout = config.connect_timeout;
    // It listens where it does for operations too; who listens everywhere is found by the name that all know.
    let by_name = left.members.first() == Some(&0) && left.at.is_unspecified();
    let at = if by_name { config.master_addr.clone() } else { left.at.to_string() };
    let config = WorldConfig {
        rank,
        world_size: left.members.len() + newcomers.map_or(0, |newcomers| newcomers.count),
        master_addr: at,
        master_port: left.port,
        master_ports: 1,
        connect_timeout: newcomers.map_or(config.connect_timeout, |newcomers| newcomers.patience),
        ..config.clone()
    };
    let watched = Watched::default();
    let (failure, is_meeting) = (watched.failure.clone(), Arc::new(AtomicBool::new(true)));
    let meeting = is_meeting.clone();
    left.meeting.on_break(move || {
        if meeting.load(Ordering::SeqCst) {
            failure.set(Cause::Aborted(rank, "somebody who was to come is lost".to_owned()));
        }
    });
    if let Some(newcomers) = newcomers.filter(|_| rank == 0) {
        let place = WorldConfig {
            rank: left.members.len(),
            master_addr: from_beyond(&config, left.at),
            ..config.clone()
        };
        (newcomers.announce)(&place);
    }
    let met = meet(&config, (rank == 0).then_some(listener), &watched);
    is_meeting.store(false, Ordering::SeqCst);
    // Who is lost from now on is missed in the new world, by all of it, and they meet there.
    let communicator = met?;
    Ok(Regrouped { communicator, config: WorldConfig { connect_timeout, ..config }, members: left.members })
}
