//! Communicators of some of a world's ranks on this crate's own engine.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::backend::{Backend, Members, VERDICT};
use crate::error::Result;

/// Returns the id of a part of communicator `parent` with these ranks of the world. `number` counts the splits. All ranks of the
/// part compute the same id; another part has it with negligible probability.
pub(crate) fn part_id(parent: u32, number: u32, of_world: &[usize]) -> u32 {
    let mut hash = DefaultHasher::new();
    (parent, number, of_world).hash(&mut hash);
    (hash.finish() as u32).max(1)
}

impl Backend {
    /// Makes a backend for this rank's group of `groups`. `number` counts the splits of this one. Every rank calls this at
    /// the same place with the same groups.
    pub(crate) fn part(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Self> {
        let places = groups.iter().find(|group| group.contains(&self.rank)).cloned().unwrap_or_default();
        let of_world: Vec<usize> = places.iter().map(|rank| self.members[*rank]).collect();
        let id = part_id(self.id, number, &of_world);
        let own = places.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        let connector = self.shared.connector.clone();
        let part = connector.connect(self, Members { places, of_world, own, id });
        let part = part.map(Self::over_simulated_link);
        // If the world broke in the meantime, that is the reason. The control plane may name the lost rank a moment later.
        part.map_err(|error| {
            let cause = self.shared.failure.wait(self.shared.control.verdict_after(VERDICT));
            cause.map_or(error, |cause| self.error(cause))
        })
    }
}
