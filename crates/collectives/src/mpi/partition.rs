//! Pieces of ranges that are too long for one call of MPI.

/// Returns piece `round` of a range in pieces of `step`; empty after its end.
pub(super) fn part_of(whole: std::ops::Range<usize>, round: usize, step: usize) -> std::ops::Range<usize> {
    let start = (whole.start + round * step).min(whole.end);
    start..(start + step).min(whole.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_range_are_the_range() {
        let pieces: Vec<_> = (0..4).map(|round| part_of(10..17, round, 3)).collect();
        assert_eq!(pieces, [10..13, 13..16, 16..17, 17..17]);
    }
}
