//! The table of all ranks that results from the registration.

use std::net::SocketAddr;

use crate::control::Process;

/// The addresses and processes of all ranks, by rank.
#[derive(Debug, Clone)]
pub(crate) struct RankTable {
    /// The addresses where ranks listen for data.
    pub(crate) data: Vec<SocketAddr>,
    /// The processes of ranks; empty in the table of a part of a world.
    pub(crate) processes: Vec<Process>,
    /// The token that connections of this world show.
    pub(crate) token: u64,
}

/// The entry of one rank in a registration that is not complete.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RankEntry {
    pub(crate) data: SocketAddr,
    pub(crate) process: Process,
}
