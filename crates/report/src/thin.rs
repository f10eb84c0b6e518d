//! Downsampling of curves, and of what is shown of many steps.

/// Returns the indices of about `limit` points, in ascending order. Keeps the first, last, smallest and largest point
/// of each of equal intervals (M4, Jugel et al. 2014), and a point that is not finite, so that gaps remain.
pub(crate) fn thinned(values: &[f64], limit: usize) -> Vec<usize> {
    let count = values.len();
    if count <= limit.max(4) {
        return (0..count).collect();
    }
    let parts = (limit / 4).max(1);
    let mut kept = Vec::with_capacity(4 * parts);
    for part in 0..parts {
        let (from, to) = (part * count / parts, (part + 1) * count / parts);
        let by_value = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
        let finite = || (from..to).filter(|at| values[*at].is_finite());
        let extremes = [finite().min_by(by_value), finite().max_by(by_value)];
        let gap = (from..to).find(|at| !values[*at].is_finite());
        let mut of_part: Vec<usize> =
            extremes.into_iter().chain([gap]).flatten().chain([from, to - 1]).collect();
        of_part.sort_unstable();
        kept.extend(of_part);
    }
    kept.dedup();
    kept
}

/// Returns at most `most` evenly spaced numbers below `all`, including the first and the last.
pub(crate) fn spaced(all: usize, most: usize) -> Vec<usize> {
    match most {
        0 => Vec::new(),
        1 => all.checked_sub(1).into_iter().collect(),
        _ if all <= most => (0..all).collect(),
        _ => (0..most).map(|at| at * (all - 1) / (most - 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extremes_and_ends_are_kept() {
        let mut values: Vec<f64> = (0..100_000).map(|n| (f64::from(n) * 0.01).sin()).collect();
        values[77_777] = 50.0;
        values[12_345] = -50.0;
        let kept = thinned(&values, 1000);
        assert!(kept.len() <= 1000 && kept.is_sorted_by(|a, b| a < b), "{}", kept.len());
        for at in [0, 12_345, 77_777, 99_999] {
            assert!(kept.contains(&at), "{at}");
        }
        values[50_000] = f64::NAN;
        let kept = thinned(&values, 1000);
        assert!([12_345, 50_000, 77_777].iter().all(|at| kept.contains(at)), "gaps hide no extremes");
        assert_eq!(thinned(&values[..100], 1000).len(), 100);
        assert!(thinned(&[], 10).is_empty());
        assert!(thinned(&values, 0).len() <= 5);
    }
}
