//! Precision and recall of generated images (Kynkäänniemi et al. 2019): the fraction of generated images in the manifold of real ones, and
//! the reverse.

use crate::error::QualityError;
use crate::rows::Rows;

/// The precision and the recall of generated images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrecisionRecall {
    /// The fraction of generated rows in the manifold of real ones.
    pub precision: f64,
    /// The fraction of real rows in the manifold of generated ones.
    pub recall: f64,
}

/// Returns the fraction of the generated rows in the manifold of the real ones, and the reverse. A row is in a manifold if its
/// distance to a row of it is at most that row's distance to its `neighbours`-th nearest neighbour. Without rows it is 0.
///
/// # Errors
/// [`QualityError::Widths`] if rows have different features.
pub fn precision_and_recall(
    real: Rows<'_>,
    generated: Rows<'_>,
    neighbours: usize,
) -> Result<PrecisionRecall, QualityError> {
    real.check_comparable(&generated)?;
    Ok(PrecisionRecall {
        precision: share_among(generated, real, neighbours),
        recall: share_among(real, generated, neighbours),
    })
}

/// Returns the fraction of `rows` in the manifold of `others`.
fn share_among(rows: Rows<'_>, others: Rows<'_>, neighbours: usize) -> f64 {
    let radii: Vec<f64> = others
        .iter()
        .map(|own| {
            let mut distances: Vec<f64> = others.iter().map(|other| squared_distance(own, other)).collect();
            // The nearest is the row itself.
            let at = neighbours.min(distances.len() - 1);
            *distances.select_nth_unstable_by(at, f64::total_cmp).1
        })
        .collect();
    let among = |row: &[f32]| {
        let mut known = others.iter().zip(&radii);
        known.any(|(other, radius)| squared_distance(row, other) <= *radius)
    };
    rows.iter().filter(|row| among(row)).count() as f64 / rows.count().max(1) as f64
}

fn squared_distance(one: &[f32], two: &[f32]) -> f64 {
    one.iter().zip(two).map(|(one, two)| f64::from(one - two).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The precision and the recall of rows of one feature.
    fn precision_and_recall(real: &[f32], generated: &[f32], neighbours: usize) -> [f64; 2] {
        let [real, generated] = [real, generated].map(|values| Rows::new(values, 1).expect("rows"));
        let PrecisionRecall { precision, recall } =
            super::precision_and_recall(real, generated, neighbours).expect("equal widths");
        [precision, recall]
    }

    #[test]
    fn precision_and_recall_of_points_on_a_line() {
        // Six points on a line, one apart: each reaches as far as its nearest neighbour.
        let real = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(precision_and_recall(&real, &real, 1), [1.0, 1.0]);
        // All generated points are good, but cover a half: they reach 0.1, past the 2 and not to the 1.
        let half = [2.9, 3.0, 3.9, 4.0, 4.9, 5.0];
        let [precision, recall] = precision_and_recall(&real, &half, 1);
        assert_eq!((precision, recall), (1.0, 0.5));
        // Half of the generated points are far off, and the real points are within their reach.
        let off = [0.0, 2.5, 5.0, 100.0, 200.0, 300.0];
        let [precision, recall] = precision_and_recall(&real, &off, 1);
        assert_eq!((precision, recall), (0.5, 1.0));
        // More neighbours reach farther.
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.0], 1)[0], 1.0);
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.5], 1)[0], 0.0);
        assert_eq!(precision_and_recall(&[0.0, 1.0, 3.0], &[5.5], 2)[0], 1.0);
        assert_eq!(precision_and_recall(&[], &[5.5], 1), [0.0, 0.0]);
    }
}
