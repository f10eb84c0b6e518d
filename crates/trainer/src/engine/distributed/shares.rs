//! Which part of every step's batch is this rank's, from which step on: it changes when ranks die.

/// A rank's part of a global batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) struct Share {
    /// Which part, from 0; none of a rank that only serves.
    pub(in crate::engine) rank: Option<usize>,
    /// How many parts there are.
    pub(in crate::engine) ranks: usize,
}

/// A rank's parts over the steps of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Shares {
    /// From which step on, in order.
    by_step: Vec<(u64, Share)>,
}

impl Shares {
    /// One part in all steps.
    pub(in crate::engine) fn new(share: Share) -> Self {
        Self { by_step: vec![(0, share)] }
    }

    /// From `step` on, counted from 0, it is another one.
    pub(in crate::engine) fn change(&mut self, step: u64, share: Share) {
        self.by_step.retain(|(from, _)| *from < step || *from == 0);
        self.by_step.push((step, share));
    }

    /// That of a step.
    pub(in crate::engine) fn at(&self, step: u64) -> Share {
        let (_, first) = self.by_step[0];
        self.by_step.iter().rev().find(|(from, _)| *from <= step).map_or(first, |(_, share)| *share)
    }

    /// Whether a step is the first with another part than the step before it.
    pub(in crate::engine) fn changes_at(&self, step: u64) -> bool {
        step > 0 && self.at(step) != self.at(step - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_change_from_a_step_on() {
        let of = |rank, ranks| Share { rank: Some(rank), ranks };
        let mut shares = Shares::new(of(2, 4));
        shares.change(10, of(1, 3));
        assert_eq!([0, 9, 10, 50].map(|step| shares.at(step)), [of(2, 4), of(2, 4), of(1, 3), of(1, 3)]);
        // Another death before all were there: the later word counts.
        shares.change(10, of(1, 2));
        assert_eq!([9, 10].map(|step| shares.at(step)), [of(2, 4), of(1, 2)]);
        shares.change(12, of(0, 1));
        assert_eq!([9, 11, 12].map(|step| shares.at(step)), [of(2, 4), of(1, 2), of(0, 1)]);
        let changes = (0..20).filter(|step| shares.changes_at(*step));
        assert_eq!(changes.collect::<Vec<_>>(), [10, 12]);
    }
}
