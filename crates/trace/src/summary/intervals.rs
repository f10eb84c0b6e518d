//! Sets of intervals of time.

/// Disjoint intervals in ascending order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Intervals(Vec<(f64, f64)>);

impl Intervals {
    /// Returns the union of intervals.
    pub(super) fn union(all: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mut all: Vec<(f64, f64)> = all.into_iter().filter(|(begin, end)| begin < end).collect();
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut merged: Vec<(f64, f64)> = Vec::new();
        for (begin, end) in all {
            match merged.last_mut() {
                Some(last) if begin <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((begin, end)),
            }
        }
        Self(merged)
    }

    /// Returns the intersection.
    pub(super) fn and(&self, other: &Self) -> Self {
        let (mut own, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut both = Vec::new();
        while let (Some((a, b)), Some((c, d))) = (own.peek(), theirs.peek()) {
            let (begin, end) = (a.max(*c), b.min(*d));
            if begin < end {
                both.push((begin, end));
            }
            if b <= d {
                own.next()
            } else {
                theirs.next()
            };
        }
        Self(both)
    }

    /// Returns the difference.
    pub(super) fn without(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for (begin, end) in &self.0 {
            let mut at = *begin;
            let first = other.0.partition_point(|taken| taken.1 <= *begin);
            for (from, to) in other.0[first..].iter().take_while(|taken| taken.0 < *end) {
                if at < *from {
                    left.push((at, *from));
                }
                at = at.max(*to);
            }
            if at < *end {
                left.push((at, *end));
            }
        }
        Self(left)
    }

    /// Returns the intervals.
    pub(super) fn iter(&self) -> impl Iterator<Item = (f64, f64)> {
        self.0.iter().copied()
    }

    /// Returns the total length.
    pub(super) fn length(&self) -> f64 {
        // An empty sum is -0.
        self.0.iter().fold(0.0, |sum, (begin, end)| sum + (end - begin))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_the_sets_of_their_points(
            a in prop::collection::vec((0_u8..60, 0_u8..20), 0..12),
            b in prop::collection::vec((0_u8..60, 0_u8..20), 0..12),
        ) {
            let points = |all: &[(u8, u8)]| -> Vec<bool> {
                (0..100).map(|at| all.iter().any(|(begin, len)| (*begin..begin + len).contains(&at))).collect()
            };
            let set = |all: &[(u8, u8)]| {
                Intervals::union(all.iter().map(|(begin, len)| (f64::from(*begin), f64::from(begin + len))))
            };
            let (in_a, in_b) = (points(&a), points(&b));
            let count = |of: Vec<bool>| of.into_iter().filter(|there| *there).count() as f64;
            let both = in_a.iter().zip(&in_b).map(|(a, b)| *a && *b).collect();
            prop_assert_eq!(set(&a).and(&set(&b)).length(), count(both));
            let left = in_a.iter().zip(&in_b).map(|(a, b)| *a && !*b).collect();
            prop_assert_eq!(set(&a).without(&set(&b)).length(), count(left));
            prop_assert_eq!(set(&a).length(), count(in_a));
        }
    }
}
