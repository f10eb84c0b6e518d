//! The rendezvous: ranks find rank 0, register with it, and connect to each other.
//!
//! `host` names machines and processes, `introductions` limits callers, `table` is the result of the registration, `peers` opens and accepts connections of a world,
//! `coordinator` is the side of rank 0, `search` that of the other ranks, and `connect` makes the connections for data.

mod host;
pub(crate) mod introductions;
mod table;
mod timeouts;

mod peers;

mod connect;

mod coordinator;
mod search;

pub(crate) use connect::DataConnections;
#[cfg(any(test, fuzzing))]
pub(crate) use coordinator::admit;
#[cfg(any(test, fuzzing))]
pub(crate) use host::this_process;
pub(crate) use host::{host_name, machine_name};
pub(crate) use peers::{AcceptedPeer, PeerAddresses, WorldIdentity};
#[cfg(any(test, fuzzing))]
pub(crate) use table::RankEntry;
pub(crate) use table::RankTable;
pub(crate) use timeouts::MAIL_INTRODUCTION;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::config::WorldConfig;
use crate::control::{self, ControlPlane, Heartbeat, MeetingProgress, Peer, RankState, Role, Succession};
use crate::error::Result;

/// The end of a rendezvous from outside, and the record of the ranks that it waits for.
#[derive(Clone, Copy)]
struct Waits<'a> {
    /// Ends the wait.
    cancelled: &'a Notify,
    progress: &'a MeetingProgress,
}

/// Registers this rank and waits for all others. Then the control thread starts, which lasts as long as the world.
///
/// - `listener`: on rank 0 the socket that accepts registrations.
/// - `data`: the address where this rank listens for data.
/// - `callers`: connections of ranks that have lost the coordinator.
pub(crate) fn register(
    config: &WorldConfig,
    listener: Option<TcpListener>,
    data: SocketAddr,
    state: RankState,
    callers: UnboundedReceiver<Peer>,
) -> Result<(ControlPlane, RankTable)> {
    let io = |error: std::io::Error| config.rendezvous_error(error.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    let (done, result) = crossbeam_channel::bounded(1);
    let (control, commands) = ControlPlane::remote(state.clone());
    let shared = config.clone();
    // A world that breaks before all ranks have registered was cancelled.
    let cancelled = Arc::new(Notify::new());
    let cancel = cancelled.clone();
    state.failure.on_break(move || cancel.notify_one());
    let meeting = state.meeting.clone();
    let run = async move {
        let registered = match listener {
            Some(listener) => coordinator::host(
                &shared,
                listener,
                data,
                Waits { cancelled: &cancelled, progress: &meeting },
            )
            .await
            .map(|(table, peers)| (table, Role::Coordinator(peers))),
            None => search::join(&shared, data, Waits { cancelled: &cancelled, progress: &meeting })
                .await
                .map(|(table, connection)| (table, Role::Member(connection))),
        };
        let (table, role) = match registered {
            Err(error) => return drop(done.send(Err(error))),
            Ok(registered) => registered,
        };
        let peers = PeerAddresses {
            table: Arc::new(table.clone()),
            identity: WorldIdentity::new(&shared, table.token),
        };
        let succession = Succession::new(shared.rank, shared.world_size, Arc::new(peers), callers);
        drop(done.send(Ok(table)));
        let heartbeat = Heartbeat {
            interval: shared.timeouts.heartbeat_interval,
            timeout: shared.timeouts.heartbeat_timeout,
        };
        control::run(heartbeat, role, commands, state, succession).await;
    };
    let name = format!("phalanx-control-{}", config.rank);
    let thread = std::thread::Builder::new().name(name).spawn(move || runtime.block_on(run)).map_err(io)?;
    control.keep(thread);
    let table = result.recv().map_err(|_| config.rendezvous_error("the control thread ended early"))??;
    Ok((control, table))
}
