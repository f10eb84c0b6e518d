//! Operations over the ranks inside of a step.

use std::sync::Arc;

use phalanx_tensor::{Array, ProcessGroup};

use crate::Result;

/// Operations over the ranks of a strategy that a step needs besides its gradients.
pub trait RankCollectives {
    /// Replaces sums over the elements that this rank owns by sums over all elements, in place. On a device the host does not wait.
    ///
    /// # Errors
    /// Errors of communication.
    fn sum_owned(&self, sums: &Array) -> Result<()>;

    /// Replaces a flag, 0 or 1 in f64, by 1 if the flag of any rank is 1, in place. On a device the host does not wait.
    ///
    /// # Errors
    /// Errors of communication.
    fn any(&self, flag: &Array) -> Result<()>;

    /// Replaces values by their sums over the ranks: losses, counts, votes.
    ///
    /// # Errors
    /// Errors of communication.
    fn sum(&self, values: &mut [f64]) -> Result<()>;

    /// Returns the group of the first `ranks` ranks, which have samples of a small batch, for
    /// [`phalanx_tensor::Session::batch_group`]. All ranks call it at the same place.
    ///
    /// # Errors
    /// Errors of communication.
    fn batch_group(&self, ranks: usize) -> Result<Arc<dyn ProcessGroup>>;

    /// Selects the `at`-th virtual rank of this rank: backward adds to its gradients from now on. If it is known,
    /// `more` is true if more of its micro-batches follow the next one. [`crate::VirtualRankTurns`] calls it.
    ///
    /// # Errors
    /// [`crate::ShardingError::Step`] outside of a step.
    fn virtual_rank_turn(&self, at: usize, more: Option<bool>) -> Result<()> {
        let _ = (at, more);
        Ok(())
    }
}
