//! A rank's place along the pipeline.

/// A rank among those along the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct StageRank {
    /// This rank, from 0.
    pub(in crate::engine) rank: usize,
    /// The number of ranks.
    pub(in crate::engine) ranks: usize,
}

impl StageRank {
    /// The only rank.
    pub(in crate::engine) const ALONE: Self = Self { rank: 0, ranks: 1 };
}
