//! Predicts the next blocks of a pass from the previous step.

/// The direction of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// The direction of a pass and the block that it enters.
pub(super) type BlockVisit = (Pass, usize);

/// Records the block visits of forward and backward as one sequence.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    /// The visits of the previous step.
    known: Vec<BlockVisit>,
    /// The visits of the current step so far.
    here: Vec<BlockVisit>,
    /// True if the current step visits blocks in another order than the previous one.
    astray: bool,
}

impl Prefetch {
    /// Records that a pass enters a block.
    pub(super) fn visit(&mut self, visit: BlockVisit) {
        let after_backward = self.here.last().is_some_and(|(pass, _)| *pass == Pass::Backward);
        // Without a backward pass, a repeated first block marks the next forward.
        let again = self.here.first() == Some(&visit);
        if visit.0 == Pass::Forward && (after_backward || again) {
            self.known = std::mem::take(&mut self.here);
            self.astray = false;
        }
        self.astray |= self.known.get(self.here.len()) != Some(&visit);
        self.here.push(visit);
    }

    /// Returns the visits that followed in the previous step. Empty if this step visits blocks in another order.
    pub(super) fn ahead(&self) -> &[BlockVisit] {
        let rest = if self.astray { None } else { self.known.get(self.here.len()..) };
        rest.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Pass::{Backward as B, Forward as F};
    use super::*;

    fn walk(route: &mut Prefetch, visits: &[BlockVisit]) -> Vec<Vec<BlockVisit>> {
        let step = |visit: &BlockVisit| {
            route.visit(*visit);
            route.ahead().to_vec()
        };
        visits.iter().map(step).collect()
    }

    #[test]
    fn the_second_time_is_known() {
        let cycle = [(F, 0), (F, 1), (B, 1), (B, 0)];
        let mut route = Prefetch::default();
        assert!(walk(&mut route, &cycle).iter().all(Vec::is_empty));
        for _ in 0..3 {
            let seen = walk(&mut route, &cycle);
            assert_eq!(seen, (1..=4).map(|at| cycle[at..].to_vec()).collect::<Vec<_>>());
        }
        // A new order is predicted only when it repeats.
        let other = [(F, 0), (F, 2), (B, 2), (B, 0)];
        let seen = walk(&mut route, &other);
        assert_eq!(seen[0], cycle[1..]);
        assert!(seen[1..].iter().all(Vec::is_empty));
        assert_eq!(walk(&mut route, &other)[1], other[2..]);
    }

    #[test]
    fn forward_alone_repeats_itself() {
        let mut route = Prefetch::default();
        walk(&mut route, &[(F, 3), (F, 4)]);
        assert_eq!(walk(&mut route, &[(F, 3), (F, 4)])[0], [(F, 4)]);
    }
}
