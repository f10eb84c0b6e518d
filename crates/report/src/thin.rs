//! Downsampling of curves for drawing.

/// Returns the indices of about `limit` points, in ascending order. Keeps the first, last, smallest and largest point
/// of each of equal intervals (M4, Jugel et al. 2014).
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
        let (Some(low), Some(high)) = ((from..to).min_by(by_value), (from..to).max_by(by_value)) else {
            continue;
        };
        let mut of_part = [from, low, high, to - 1];
        of_part.sort_unstable();
        kept.extend(of_part);
    }
    kept.dedup();
    kept
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
        assert_eq!(thinned(&values[..100], 1000).len(), 100);
        assert!(thinned(&[], 10).is_empty());
        assert!(thinned(&values, 0).len() <= 4);
    }
}
