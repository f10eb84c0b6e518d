//! Precision and recall of generated images (Kynkäänniemi et al. 2019): the fraction of generated images in the manifold of real ones, and
//! the reverse.

/// Returns the fraction of rows of `drawn` in the manifold of `real` (precision), and the reverse (recall). A row is in a manifold if its
/// distance to a row of it is at most that row's distance to its `neighbours`-th nearest neighbour. Rows have `dim` features.
pub(super) fn precision_and_recall(real: &[f32], drawn: &[f32], dim: usize, neighbours: usize) -> [f64; 2] {
    [share_among(drawn, real, dim, neighbours), share_among(real, drawn, dim, neighbours)]
}

/// Returns the fraction of `rows` in the manifold of `others`.
fn share_among(rows: &[f32], others: &[f32], dim: usize, neighbours: usize) -> f64 {
    let radii: Vec<f64> = others
        .chunks_exact(dim)
        .map(|own| {
            let mut distances: Vec<f64> =
                others.chunks_exact(dim).map(|other| squared_distance(own, other)).collect();
            // The nearest is the row itself.
            let at = neighbours.min(distances.len() - 1);
            *distances.select_nth_unstable_by(at, f64::total_cmp).1
        })
        .collect();
    let among = |row: &[f32]| {
        let mut known = others.chunks_exact(dim).zip(&radii);
        known.any(|(other, radius)| squared_distance(row, other) <= *radius)
    };
    let count = rows.len() / dim;
    rows.chunks_exact(dim).filter(|row| among(row)).count() as f64 / count.max(1) as f64
}

fn squared_distance(one: &[f32], two: &[f32]) -> f64 {
    one.iter().zip(two).map(|(one, two)| f64::from(one - two).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_and_recall_of_points_on_a_line() {
        // Six points on a line, one apart: each reaches as far as its nearest neighbour.
        let real = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(precision_and_recall(&real, &real, 1, 1), [1.0, 1.0]);
        // All generated points are good, but cover a half: they reach 0.1, past the 2 and not to the 1.
        let half = [2.9, 3.0, 3.9, 4.0, 4.9, 5.0];
        let [precision, recall] = precision_and_recall(&real, &half, 1, 1);
        assert_eq!((precision, recall), (1.0, 0.5));
        // Half of the generated points are far off, and the real points are within their reach.
        let off = [0.0, 2.5, 5.0, 100.0, 200.0, 300.0];
        let [precision, recall] = precision_and_recall(&real, &off, 1, 1);
        assert_eq!((precision, recall), (0.5, 1.0));
        // More neighbours reach farther.
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.0], 1, 1)[0], 1.0);
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.5], 1, 1)[0], 0.0);
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.5], 1, 2)[0], 1.0);
    }
}
