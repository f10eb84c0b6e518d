//! The ranks of workers and servers, the elements of each server, and the channels of their messages.

use std::ops::Range;

use crate::{Result, ShardingError};

/// The channels of servers and of workers.
pub(super) const TO_SERVER: u32 = 1;
pub(super) const TO_WORKER: u32 = 2;

/// Returns the elements of `len` that server `server` of `servers` has.
pub(super) fn range(len: usize, server: usize, servers: usize) -> Range<usize> {
    server * len / servers..(server + 1) * len / servers
}

/// The ranks of workers and servers. Workers are the first ranks. Servers are on every rank, or on the last ranks only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) workers: usize,
    pub(super) servers: usize,
    /// The rank of the first server.
    first: usize,
}

impl Places {
    /// Assigns roles to `ranks` ranks. The last `dedicated` ranks only serve; with 0 there is a server on every rank.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if there would be no worker.
    pub(super) fn new(ranks: usize, dedicated: usize, strategy: &'static str) -> Result<Self> {
        if dedicated == 0 {
            return Ok(Self { workers: ranks, servers: ranks, first: 0 });
        }
        if dedicated >= ranks {
            let problem =
                format!("has {dedicated} servers of {ranks} ranks; there must be a worker besides them");
            return Err(ShardingError::strategy(strategy, problem));
        }
        Ok(Self { workers: ranks - dedicated, servers: dedicated, first: ranks - dedicated })
    }

    /// True if a rank trains.
    pub(super) fn is_worker(self, rank: usize) -> bool {
        rank < self.workers
    }

    /// Returns the server on a rank, if there is one.
    pub(super) fn server_on(self, rank: usize) -> Option<usize> {
        rank.checked_sub(self.first).filter(|server| *server < self.servers)
    }

    /// Returns the rank of a server.
    pub(super) fn rank_of(self, server: usize) -> usize {
        self.first + server
    }

    /// True if servers are ranks of their own.
    pub(super) fn are_apart(self) -> bool {
        self.first > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_on_all_ranks_or_on_the_last() {
        let background = Places::new(3, 0, "ps-asp").expect("all serve");
        assert!((0..3).all(|rank| background.is_worker(rank) && background.server_on(rank) == Some(rank)));
        let apart = Places::new(5, 2, "ps-asp").expect("three work");
        assert_eq!((0..5).map(|rank| apart.is_worker(rank)).filter(|works| *works).count(), 3);
        assert_eq!((0..5).filter_map(|rank| apart.server_on(rank)).collect::<Vec<_>>(), [0, 1]);
        assert_eq!([apart.rank_of(0), apart.rank_of(1)], [3, 4]);
        let error = Places::new(2, 2, "ps-asp").expect_err("no worker").to_string();
        assert!(error.contains("2 servers of 2 ranks"), "{error}");
    }
}
