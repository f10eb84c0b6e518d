//! Which rank has which logical shards.

use std::ops::Range;

use super::tree::SumTree;
use crate::{Result, ShardingError};

/// The distribution of virtual shards over ranks: neighbouring shards on the same rank, in the order of ranks; the first ranks
/// have one more if the division is uneven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VirtualRanks {
    shards: usize,
    ranks: usize,
}

impl VirtualRanks {
    /// Distributes `shards` shards over `ranks` ranks.
    ///
    /// # Errors
    /// [`ShardingError::VirtualRanks`] if a rank would have none.
    pub fn new(shards: usize, ranks: usize) -> Result<Self> {
        match ranks >= 1 && ranks <= shards {
            true => Ok(Self { shards, ranks }),
            false => Err(ShardingError::VirtualRanks { shards, ranks }),
        }
    }

    /// The number of shards.
    pub fn shards(self) -> usize {
        self.shards
    }

    /// The number of ranks.
    pub fn ranks(self) -> usize {
        self.ranks
    }

    /// The shards of a rank.
    pub fn of(self, rank: usize) -> Range<usize> {
        let (each, more) = (self.shards / self.ranks, self.shards % self.ranks);
        let start = |rank: usize| rank * each + rank.min(more);
        start(rank)..start(rank + 1)
    }

    /// Returns the number of ranks that have one of the first `shards` shards.
    pub fn ranks_of_first(self, shards: usize) -> usize {
        (0..self.ranks).take_while(|rank| self.of(*rank).start < shards).count()
    }

    /// True if all ranks have as many shards.
    pub fn is_even(self) -> bool {
        self.shards.is_multiple_of(self.ranks)
    }

    /// The most shards that a rank has.
    pub fn most(self) -> usize {
        self.shards.div_ceil(self.ranks)
    }

    /// The tree along which shards are summed.
    pub fn tree(self) -> SumTree {
        SumTree::new(self.shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shard_has_one_rank() {
        for shards in 1..=9 {
            for ranks in 1..=shards {
                let placed = VirtualRanks::new(shards, ranks).expect("a shard for each");
                let all: Vec<usize> = (0..ranks).flat_map(|rank| placed.of(rank)).collect();
                assert_eq!(all, (0..shards).collect::<Vec<_>>());
                let most = (0..ranks).map(|rank| placed.of(rank).len()).max();
                assert_eq!(most, Some(placed.most()));
                for first in 0..=shards {
                    let holders =
                        (0..ranks).filter(|rank| placed.of(*rank).any(|shard| shard < first)).count();
                    assert_eq!(placed.ranks_of_first(first), holders);
                }
            }
        }
        assert_eq!(
            [0, 1, 2].map(|rank| VirtualRanks::new(4, 3).expect("sound").of(rank)),
            [0..2, 2..3, 3..4]
        );
        let error = VirtualRanks::new(3, 4).expect_err("a rank without any").to_string();
        assert!(error.contains("3 logical ranks") && error.contains("4 ranks"), "{error}");
    }
}
