//! Virtual ranks: a batch is cut into the same number of shards on any number of ranks. All sums over the batch follow one
//! binary tree over these shards (as EasyScale does with its virtual workers, Li et al. 2023).
//!
//! A rank has a run of neighbouring shards and computes each by itself, so that kernels see the same shapes in every world. Sums
//! of f32 depend on their order; so a rank adds up only what the tree adds up, and sends the sums of its whole subtrees.

mod group;
mod placement;
mod tree;
mod turns;

pub use group::VirtualRankGroup;
pub use placement::VirtualRanks;
pub use tree::SumTree;
pub use turns::VirtualRankTurns;
