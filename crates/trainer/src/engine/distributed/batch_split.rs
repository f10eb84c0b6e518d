//! The part of each global batch that a rank takes. It changes when ranks are lost.

/// A rank's part of a global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct RankBatch {
    /// The index of the part, from 0; none for a server.
    pub(in crate::engine) rank: Option<usize>,
    /// The number of parts.
    pub(in crate::engine) ranks: usize,
}

/// A part and its first step, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SplitChange {
    from: u64,
    part: RankBatch,
}

/// A rank's parts of the batches over the steps of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct BatchSplit {
    changes: Vec<SplitChange>,
}

impl BatchSplit {
    /// Creates a split with the same part in all steps.
    pub(in crate::engine) fn new(part: RankBatch) -> Self {
        Self { changes: vec![SplitChange { from: 0, part }] }
    }

    /// Changes the part from step `from` on, counted from 0.
    pub(in crate::engine) fn change(&mut self, from: u64, part: RankBatch) {
        self.changes.retain(|change| change.from < from || change.from == 0);
        self.changes.push(SplitChange { from, part });
    }

    /// The part of a step, counted from 0.
    pub(in crate::engine) fn at(&self, step: u64) -> RankBatch {
        let first = self.changes[0].part;
        self.changes.iter().rev().find(|change| change.from <= step).map_or(first, |change| change.part)
    }

    /// True if a step has another part than the step before it.
    pub(in crate::engine) fn changes_at(&self, step: u64) -> bool {
        step > 0 && self.at(step) != self.at(step - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_change_from_a_step_on() {
        let of = |rank, ranks| RankBatch { rank: Some(rank), ranks };
        let mut shares = BatchSplit::new(of(2, 4));
        shares.change(10, of(1, 3));
        assert_eq!([0, 9, 10, 50].map(|step| shares.at(step)), [of(2, 4), of(2, 4), of(1, 3), of(1, 3)]);
        // Another loss before that step: the later change counts.
        shares.change(10, of(1, 2));
        assert_eq!([9, 10].map(|step| shares.at(step)), [of(2, 4), of(1, 2)]);
        shares.change(12, of(0, 1));
        assert_eq!([9, 11, 12].map(|step| shares.at(step)), [of(2, 4), of(1, 2), of(0, 1)]);
        let changes = (0..20).filter(|step| shares.changes_at(*step));
        assert_eq!(changes.collect::<Vec<_>>(), [10, 12]);
    }
}
