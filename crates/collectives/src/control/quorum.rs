//! The rule that decides which part of a divided world may go on.

/// True if the ranks `left`, which can reach each other, may go on without the ranks `lost`, which cannot be reached and are not
/// known to have ended. They may if they are more, or equally many with the lowest rank of all.
///
/// Of two groups that cannot reach each other, each is part of the other's `lost`. So at most one may go on.
pub(super) fn may_go_on(left: &[usize], lost: &[usize]) -> bool {
    match left.len().cmp(&lost.len()) {
        std::cmp::Ordering::Greater => true,
        // Without any rank, none goes on.
        std::cmp::Ordering::Equal => left.iter().min() < lost.iter().min(),
        std::cmp::Ordering::Less => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the ranks whose bits are set.
    fn ranks(bits: usize, world: usize) -> Vec<usize> {
        (0..world).filter(|rank| bits >> rank & 1 == 1).collect()
    }

    #[test]
    fn of_groups_that_cannot_reach_each_other_at_most_one_goes_on() {
        for world in 1..=5 {
            let all = (1 << world) - 1;
            for dead in 0..=all {
                let alive = all & !dead;
                // Every group of living ranks, with all that it may know of the dead.
                let groups = || (1..=alive).filter(|group| group & !alive == 0);
                let goes_on = |group: usize| {
                    (0..=dead)
                        .filter(|known| known & !dead == 0)
                        .any(|known| may_go_on(&ranks(group, world), &ranks(all & !group & !known, world)))
                };
                for one in groups().filter(|group| goes_on(*group)) {
                    let other = groups().find(|other| other & one == 0 && goes_on(*other));
                    assert_eq!(other, None, "of {world}, {dead:b} dead: {one:b}");
                }
                // A group that knows that all others have ended goes on, however small it is.
                assert!(alive == 0 || may_go_on(&ranks(alive, world), &[]));
            }
        }
        assert!(may_go_on(&[0, 3], &[1, 2]) && !may_go_on(&[1, 2], &[0, 3]) && !may_go_on(&[2], &[0, 1]));
    }
}
