//! Communicators of some of a world's ranks, on this crate's own engine.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::backend::{Backend, VERDICT};
use crate::error::Result;

/// Some of a backend's ranks, for which a backend of their own is made.
pub(crate) struct Members {
    /// Their places in the backend that they come from, in the new order.
    pub(crate) places: Vec<usize>,
    /// Their numbers in the world.
    pub(crate) of_world: Vec<usize>,
    /// This rank's place among them.
    pub(crate) own: usize,
    /// The new communicator's number.
    pub(crate) id: u32,
}

/// How this rank reaches others, for communicators of some of them.
pub(crate) trait Connector: Send + Sync {
    /// A backend with links of its own for `members`. Every rank of `backend` calls this at the same place, each with
    /// the members that it is one of.
    fn connect(&self, backend: &mut Backend, members: Members) -> Result<Backend>;
}

/// The number of the communicator that is split off communicator `parent` as its so-many-th, for these ranks of the
/// world: all of them find it, and others hardly.
pub(crate) fn part_id(parent: u32, number: u32, of_world: &[usize]) -> u32 {
    let mut hash = DefaultHasher::new();
    (parent, number, of_world).hash(&mut hash);
    (hash.finish() as u32).max(1)
}

impl Backend {
    /// A backend for the one of `groups` that this rank is in; `number` counts the splits of this one. Every rank calls
    /// this at the same place with the same groups.
    pub(crate) fn part(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Self> {
        let places = groups.iter().find(|group| group.contains(&self.rank)).cloned().unwrap_or_default();
        let of_world: Vec<usize> = places.iter().map(|rank| self.members[*rank]).collect();
        let id = part_id(self.id, number, &of_world);
        let own = places.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let connector = self.shared.connector.clone();
        let part = connector.connect(self, Members { places, of_world, own, id });
        let part = part.map(Self::over_simulated_link);
        // If the world broke meanwhile, that is why ranks did not meet; who is gone is known a moment after nobody answers there.
        part.map_err(|error| {
            let cause = self.shared.failure.wait(self.shared.control.verdict_after(VERDICT));
            cause.map_or(error, |cause| self.error(cause))
        })
    }
}
