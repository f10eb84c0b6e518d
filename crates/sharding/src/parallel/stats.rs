//! What waiting and not waiting has cost: what nobody sees unless it is counted.

use std::time::Duration;

use super::Histogram;

/// How stale changes were, and how long this rank has waited for others, so far.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SyncStats {
    /// How stale the gradients of this rank were, in changes of the parameters that came between pull and push.
    pub staleness: Histogram,
    /// How many steps this rank was ahead of the slowest when it began one.
    pub leads: Histogram,
    /// How long it was held up, because others were not as far.
    pub waited: Duration,
    /// How far apart the clocks of any two ranks ever were, as far as this rank has seen.
    pub spread: u64,
    /// How often it has met others: averages, outer steps, exchanges.
    pub meetings: u64,
    /// How far parameters of the ranks are from their mean, as of the last time that the mean was made: the root of the mean
    /// square distance. `None` where ranks have no parameters of their own, or no mean was made.
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
