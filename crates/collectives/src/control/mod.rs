//! The control plane: heartbeats, news of lost ranks, notices, and the agreement to stop after the same step.
//!
//! The ranks form a star around a coordinator. This is rank 0, or after its loss the lowest surviving rank, until the survivors
//! have formed a new world.
//!
//! Reading order: `process` tells which processes have ended, `frame` has the messages, `job_state` the state of a rank's job,
//! `meeting` the ranks that it waits for,
//! `quorum` decides which part of a world goes on, `rejoin` who is in the next one. `coordinator` and `member` are the two sides of
//! the star, `succession` finds the next coordinator, `plane` is the communicator's access, and `handle` what programs call.

mod process;
mod timeouts;

mod job_state;
mod meeting;
mod state;

pub(crate) mod command;
pub(crate) mod frame;
mod listener;

mod quorum;
mod rejoin;
mod succession;

mod coordinator;
mod member;

mod plane;

mod handle;

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;

pub use handle::Control;
pub use job_state::{Notice, Stop};

pub(crate) use command::RejoinPlan;
pub(crate) use meeting::{MeetingPhase, MeetingProgress};
pub(crate) use plane::ControlPlane;
pub(crate) use process::{Process, ProcessSnapshot};
pub(crate) use state::{Connection, Heartbeat, Peer, RankState};
pub(crate) use succession::{Dialing, PeerDirectory, Succession};

use tokio::sync::mpsc::UnboundedReceiver;

use command::Command;
use coordinator::Origin;
use member::MemberEnd;
use succession::SearchResult;

/// The most ranks of a world.
pub(crate) const MOST_RANKS: usize = 1 << 16;

/// A rank's role after the rendezvous, with its connections.
pub(crate) enum Role {
    /// Rank 0, with a connection from each other rank.
    Coordinator(Vec<Peer>),
    /// Another rank, with its connection to rank 0.
    Member(Connection),
}

/// Runs a rank's control thread until it leaves, as the coordinator or with the coordinator of the time.
pub(crate) async fn run(
    heartbeat: Heartbeat,
    role: Role,
    mut commands: UnboundedReceiver<Command>,
    state: RankState,
    mut succession: Succession,
) {
    let (mut coordinator, mut rejoin) = match role {
        Role::Coordinator(peers) => {
            return coordinator::run(heartbeat, Origin::First(peers), commands, state, succession).await;
        }
        Role::Member(connection) => (Peer { rank: 0, connection }, None),
    };
    loop {
        let end = member::run(heartbeat, coordinator, &mut commands, &state, &mut succession, rejoin).await;
        let MemberEnd::CoordinatorLost(unanswered) = end else { return };
        match succession.find(heartbeat, &mut commands, unanswered).await {
            SearchResult::Coordinator(next, unanswered) => (coordinator, rejoin) = (next, unanswered),
            SearchResult::Own(peers, unanswered) => {
                let origin = Origin::Successor(peers, unanswered);
                return coordinator::run(heartbeat, origin, commands, state, succession).await;
            }
            SearchResult::Left => return,
        }
    }
}
