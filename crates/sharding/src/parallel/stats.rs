//! The cost of waiting and of staleness.

use std::time::Duration;

use super::Histogram;

/// Staleness of changes, and waits of this rank, so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SyncStats {
    /// The staleness of this rank's gradients, in changes of the parameters between pull and push.
    pub staleness: Histogram,
    /// The steps that this rank was ahead of the slowest when it began a step.
    pub leads: Histogram,
    /// The time that it waited for slower ranks.
    pub waited: Duration,
    /// The largest difference of two ranks' clocks that this rank has seen.
    pub spread: u64,
    /// The number of meetings: averages, outer steps, exchanges.
    pub meetings: u64,
    /// The root mean square distance of the ranks' parameters from their mean, when the mean was last computed. `None`
    /// where ranks have no parameters of their own, or no mean was computed.
    pub consensus_distance: Option<f64>,
}

impl SyncStats {
    /// These numbers and those of another network of the same rank.
    #[must_use]
    pub fn and(mut self, other: &Self) -> Self {
        self.staleness.merge(&other.staleness);
        self.leads.merge(&other.leads);
        self.waited += other.waited;
        self.spread = self.spread.max(other.spread);
        self.meetings += other.meetings;
        let squares = |of: Option<f64>| of.map_or(0.0, |distance| distance * distance);
        if self.consensus_distance.is_some() || other.consensus_distance.is_some() {
            let sum = squares(self.consensus_distance) + squares(other.consensus_distance);
            self.consensus_distance = Some(sum.sqrt());
        }
        self
    }
}
