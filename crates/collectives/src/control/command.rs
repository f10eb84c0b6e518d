//! Commands of a rank's program to its control thread.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use crossbeam_channel::Sender;
use serde::{Deserialize, Serialize};

use super::state::Activities;
use crate::error::CommError;
use crate::failure::{Cause, Failure};

/// A command to the control thread.
pub(crate) enum Command {
    /// Tell all ranks that the world is broken. Dropping the sender reports that they were told.
    Broken(Cause, Sender<()>),
    /// Ask all ranks for their activity on a communicator.
    Ask(u32, Sender<Activities>),
    /// Send a notice to the coordinator.
    Post(String, Vec<u8>),
    /// Send a notice from the coordinator to all other ranks.
    Announce(String, Vec<u8>),
    /// Ask all ranks to stop after the same step.
    Stop(StopRequest),
    /// Form a new world with the surviving ranks of a broken one.
    Rejoin(RejoinRequest),
    /// Tell all ranks that this one leaves for good while they go on. Dropping the sender reports that they were told.
    Depart(Sender<()>),
    /// Run a task on the control thread as long as this rank is in the world.
    Spawn(Task),
    /// Leave the world in good order.
    Leave,
}

/// A task that the control thread runs in addition to its own work.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A rank's request that all ranks stop after the same step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StopRequest {
    pub(crate) reason: String,
    /// True if steps go on after an interlude.
    pub(crate) goes_on: bool,
}

/// A rank's request to form a new world with the surviving ranks of a broken one.
pub(crate) struct RejoinRequest {
    /// The port where this rank waits for the others if it is the coordinator.
    pub(crate) port: u16,
    pub(crate) answer: Sender<Result<RejoinPlan, RejoinRefusal>>,
}

/// The members of a new world, and their meeting point.
#[derive(Debug, Clone)]
pub(crate) struct RejoinPlan {
    /// Their numbers in the broken world, in order. The first is the coordinator.
    pub(crate) members: Vec<usize>,
    /// The address and port where the coordinator waits for them.
    pub(crate) at: IpAddr,
    pub(crate) port: u16,
    /// Breaks if a member is lost while they connect.
    pub(crate) meeting: Arc<Failure>,
}

/// The reason why a rank cannot be part of a new world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RejoinRefusal {
    /// The ranks that cannot be reached may form a larger world.
    Minority { left: Vec<usize>, lost: Vec<usize>, world_size: usize },
    /// Rank `by` excluded this rank.
    LeftOut { rank: usize, by: usize, reason: String },
}

impl From<RejoinRefusal> for CommError {
    fn from(refusal: RejoinRefusal) -> Self {
        match refusal {
            RejoinRefusal::Minority { left, lost, world_size } => Self::Minority { left, lost, world_size },
            RejoinRefusal::LeftOut { rank, by, reason } => Self::LeftOut { rank, by, reason },
        }
    }
}
