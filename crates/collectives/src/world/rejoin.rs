//! Rejoin: the surviving ranks of a world that has lost ranks form a new world.
//!
//! The control plane outlives the world's operations. Each surviving rank tells the coordinator that it asks for a new world. Once all
//! have, the coordinator answers with the members and the address where it waits, and they register there as in any world. The
//! coordinator is rank 0, or after its loss the lowest surviving rank. Ranks that are lost in the meantime are left out by the next
//! attempt.
//!
//! Newcomers join in the same way, also if no rank was lost. The coordinator announces the address and the ranks that are to come, and
//! newcomers register there as these ranks.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::build;
use crate::communicator::Communicator;
use crate::config::{Timeouts, WorldConfig};
use crate::control::{Control, RankState, RejoinPlan};
use crate::error::{CommError, Result};
use crate::failure::Cause;
use phalanx_environment::{MeetingPoint, outside_address};

/// The new world after a rejoin.
#[derive(Debug)]
pub struct RebuiltWorld {
    /// Its communicator.
    pub communicator: Communicator,
    /// This rank's place in it.
    pub config: WorldConfig,
    /// The numbers of its ranks in the broken world. Newcomers have the ranks after these.
    pub members: Vec<usize>,
}

/// Ranks that join an existing world.
pub struct Newcomers<'a> {
    /// Their number, equal on every member.
    pub count: usize,
    /// The longest wait for them. After that the members form a world without them.
    pub timeout: Duration,
    /// Called on the coordinator with the place of the first newcomer; the others have the next ranks. It must tell the newcomers,
    /// which then [`super::connect`] with it.
    pub announce: &'a dyn Fn(&WorldConfig),
}

impl std::fmt::Debug for Newcomers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Newcomers").field("count", &self.count).finish_non_exhaustive()
    }
}

/// Forms a new world of the surviving ranks of a world that was made by `config`. All of them call this, and keep `broken` until it
/// returns. Ranks are renumbered in their order, so the lowest survivor is rank 0. Ranks lost in the meantime are left out.
///
/// At most one of several groups that cannot reach each other goes on. It must have more ranks than it cannot reach, or equally many
/// with the lowest rank of all. Ranks of the same machine whose processes have ended do not count (Linux), so on one machine any
/// number may be killed.
///
/// # Errors
/// - [`CommError::Minority`] if the other ranks may form the larger group.
/// - [`CommError::LeftOut`] if they have formed a world without this rank.
/// - [`CommError::Unmet`] if a living rank does not ask within [`Timeouts::operation`].
/// - [`CommError::Closed`] if the coordinator has left.
/// - [`CommError::Aborted`] if the world broke because a rank gave up, which is not a loss.
/// - [`CommError::NotOffered`] between threads of a process.
/// - The errors of [`super::connect`].
pub fn rejoin(broken: &Communicator, config: &WorldConfig) -> Result<RebuiltWorld> {
    rejoin_with(broken, config, None)
}

/// Forms a new world of the members of a world, as [`rejoin`] does, and newcomers. All members call this with the same number of
/// newcomers, and keep `world` until it returns. If the newcomers do not come, or a member is lost in the meantime, the members form
/// a world without them.
///
/// # Errors
/// Errors of [`rejoin`].
pub fn rejoin_with(
    world: &Communicator,
    config: &WorldConfig,
    mut newcomers: Option<&Newcomers<'_>>,
) -> Result<RebuiltWorld> {
    let control = world.control()?;
    if let Err(error @ CommError::Aborted { .. }) = world.check() {
        return Err(error);
    }
    let until = Instant::now() + config.timeouts.operation;
    loop {
        match attempt(&control, config, until, newcomers.take()) {
            Ok(rebuilt) => return Ok(rebuilt),
            Err(error) if Instant::now() >= until || is_final(&error) => return Err(error),
            Err(error) => tracing::warn!(%error, "rejoin failed; the surviving ranks try again"),
        }
    }
}

/// True if another attempt would fail in the same way.
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

/// Returns the address by which newcomers, which may be on any host, reach the coordinator that listens at `at`.
fn address_for_newcomers(config: &WorldConfig, at: IpAddr) -> String {
    if !at.is_unspecified() {
        return at.to_string();
    }
    // The name that members use, unless it is valid on its own host only.
    let name = &config.meeting.address;
    let own = name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    if own { outside_address(at).to_string() } else { name.clone() }
}

fn attempt(
    control: &Control,
    config: &WorldConfig,
    until: Instant,
    newcomers: Option<&Newcomers<'_>>,
) -> Result<RebuiltWorld> {
    let io = |error: std::io::Error| config.rendezvous_error(format!("for a rejoin: {error}"));
    // Every rank listens: the coordinator is known only once all have asked.
    let listener = TcpListener::bind(SocketAddr::new(config.meeting.bind_addr, 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let plan = control.rejoin(port, until.saturating_duration_since(Instant::now()))?;
    let rank = plan.members.iter().position(|member| *member == config.rank);
    let rank = rank.ok_or_else(|| config.rendezvous_error("the surviving ranks count this rank as lost"))?;
    // If a member is missing, its host may have taken newcomers with it. All members see that and go on without them.
    let newcomers = newcomers.filter(|_| plan.members.len() == config.world_size);
    let connect = config.timeouts.connect;
    let next = next_config(config, &plan, rank, newcomers);
    let state = RankState::default();
    let (failure, is_meeting) = (state.failure.clone(), Arc::new(AtomicBool::new(true)));
    let meeting = is_meeting.clone();
    plan.meeting.on_break(move || {
        if meeting.load(Ordering::SeqCst) {
            failure.set(Cause::Aborted(rank, "a rank that was to come is lost".to_owned()));
        }
    });
    if let Some(newcomers) = newcomers.filter(|_| rank == 0) {
        let address = address_for_newcomers(&next, plan.at);
        let place = WorldConfig {
            rank: plan.members.len(),
            meeting: MeetingPoint { address, ..next.meeting.clone() },
            ..next.clone()
        };
        (newcomers.announce)(&place);
    }
    let built = build(&next, (rank == 0).then_some(listener), &state);
    is_meeting.store(false, Ordering::SeqCst);
    // From now on a lost rank breaks the new world for all of its ranks, which rejoin there.
    let communicator = built?;
    let timeouts = Timeouts { connect, ..next.timeouts };
    Ok(RebuiltWorld { communicator, config: WorldConfig { timeouts, ..next }, members: plan.members })
}

/// Returns the options of this rank in the new world, as rank `rank`.
fn next_config(
    config: &WorldConfig,
    plan: &RejoinPlan,
    rank: usize,
    newcomers: Option<&Newcomers<'_>>,
) -> WorldConfig {
    // The coordinator listens at the address that it uses for operations. One that listens at all addresses is found by its name.
    let by_name = plan.members.first() == Some(&0) && plan.at.is_unspecified();
    let address = if by_name { config.meeting.address.clone() } else { plan.at.to_string() };
    let connect = newcomers.map_or(config.timeouts.connect, |newcomers| newcomers.timeout);
    WorldConfig {
        rank,
        world_size: plan.members.len() + newcomers.map_or(0, |newcomers| newcomers.count),
        meeting: MeetingPoint { address, port: plan.port, ports: 1, ..config.meeting.clone() },
        timeouts: Timeouts { connect, ..config.timeouts },
        ..config.clone()
    }
}
