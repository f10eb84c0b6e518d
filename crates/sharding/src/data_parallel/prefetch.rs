//! Prediction of the next blocks of a pass, learnt from the last pass.

/// Which way a pass goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    Backward,
}

/// A pass came to a block.
pub(super) type Visit = (Pass, usize);

/// Forward and the backward that follows it, as one sequence of visits.
#[derive(Debug, Default)]
pub(super) struct Prefetch {
    /// The last whole one.
    known: Vec<Visit>,
    /// The present one, so far.
    here: Vec<Visit>,
    /// True if the present pass has left the known order.
    astray: bool,
}

impl Prefetch {
    /// Notes that a pass has come to a block.
    pub(super) fn visit(&mut self, visit: Visit) {
        let after_backward = self.here.last().is_some_and(|(pass, _)| *pass == Pass::Backward);
        // Of a forward without a backward the next one is known by its first block.
        let again = self.here.first() == Some(&visit);
        if visit.0 == Pass::Forward && (after_backward || again) {
            self.known = std::mem::take(&mut self.here);
            self.astray = false;
        }
        self.astray |= self.known.get(self.here.len()) != Some(&visit);
        self.here.push(visit);
    }

    /// The visits that followed the last time; none once this route has left the known way.
    pub(super) fn ahead(&self) -> &[Visit] {
        let rest = if self.astray { None } else { self.known.get(self.here.len()..) };
        rest.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::Pass::{Backward as B, Forward as F};
    use super::*;

    fn walk(route: &mut Prefetch, visits: &[Visit]) -> Vec<Vec<Visit>> {
        let step = |visit: &Visit| {
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
        // Another way: nothing is known of it until it is gone again.
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
