//! The Fréchet distance of two sets of features (Heusel et al. 2017): the distance of normal distributions with their means and
//! covariances.

use nalgebra::{DMatrix, DVector, SymmetricEigen};
use phalanx_tensor::Key;

/// The number of resamplings of [`frechet_deviation`].
const RESAMPLINGS: u64 = 20;

/// Computes ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½) of rows of `dim` features; 0 for equal sets. It is larger for fewer rows: compare only
/// values of equally many.
///
/// The trace of the root is that of the symmetric (Σ₁^½ Σ₂ Σ₁^½)^½. It avoids complex numbers, and the offsets that general matrix roots
/// need for singular covariances.
pub(super) fn frechet_distance(one: &[f32], two: &[f32], dim: usize) -> f64 {
    let ((mean_one, one), (mean_two, two)) = (moments(one, dim), moments(two, dim));
    let root = {
        let eigen = SymmetricEigen::new(one.clone());
        let roots = eigen.eigenvalues.map(|value| value.max(0.0).sqrt());
        &eigen.eigenvectors * DMatrix::from_diagonal(&roots) * eigen.eigenvectors.transpose()
    };
    let middle = &root * &two * &root;
    // Rounding makes it slightly asymmetric, and zeros slightly negative.
    let middle = (&middle + middle.transpose()) * 0.5;
    let cross: f64 = middle.symmetric_eigenvalues().iter().map(|value| value.max(0.0).sqrt()).sum();
    let distance = (mean_one - mean_two).norm_squared() + one.trace() + two.trace() - 2.0 * cross;
    distance.max(0.0)
}

/// Returns the standard deviation of the distance of other samples of as many rows, estimated by drawing rows of both sets with
/// replacement (the bootstrap, Efron 1979). It is the same in every call.
pub(super) fn frechet_deviation(one: &[f32], two: &[f32], dim: usize) -> f64 {
    let key = Key::new(0).stream("frechet deviation");
    let distances: Vec<f64> = (0..RESAMPLINGS)
        .map(|number| {
            let key = key.index(number);
            let [one, two] = [(one, 0), (two, 1)].map(|(rows, set)| resampled(rows, dim, key.index(set)));
            frechet_distance(&one, &two, dim)
        })
        .collect();
    let mean = distances.iter().sum::<f64>() / RESAMPLINGS as f64;
    let squares = distances.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>();
    (squares / (RESAMPLINGS - 1) as f64).sqrt()
}

/// Draws as many rows with replacement.
fn resampled(rows: &[f32], dim: usize, key: Key) -> Vec<f32> {
    let count = rows.len() / dim;
    let mut drawn = vec![0.0; count];
    key.uniform(0, &mut drawn);
    let row = |number: f64| {
        let at = ((number * count as f64) as usize).min(count.saturating_sub(1));
        &rows[at * dim..(at + 1) * dim]
    };
    drawn.into_iter().flat_map(row).copied().collect()
}

/// Returns the mean and the unbiased covariance of rows of features.
fn moments(rows: &[f32], dim: usize) -> (DVector<f64>, DMatrix<f64>) {
    let count = rows.len() / dim;
    let values = DMatrix::from_row_iterator(count, dim, rows.iter().map(|value| f64::from(*value)));
    let mean = values.row_mean().transpose();
    let centred = DMatrix::from_fn(count, dim, |row, column| values[(row, column)] - mean[column]);
    let covariance = centred.transpose() * &centred / (count.max(2) - 1) as f64;
    (mean, covariance)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(seed: u64, rows: usize, dim: usize, shape: impl Fn(usize, f64) -> f64) -> Vec<f32> {
        let mut values = vec![0.0; rows * dim];
        Key::new(seed).normal(0, &mut values);
        values.iter().enumerate().map(|(at, value)| shape(at % dim, *value) as f32).collect()
    }

    #[test]
    fn known_distances() {
        let same = drawn(1, 50, 4, |_, value| value);
        assert!(frechet_distance(&same, &same, 4) < 1e-9);
        // Two points each: means 0 and (3, 0), variances 2 and 8 along the first axis, 0 along the second.
        let (one, two) = ([-1.0, 0.0, 1.0, 0.0], [1.0, 0.0, 5.0, 0.0]);
        let expected = 9.0 + (2.0_f64.sqrt() - 8.0_f64.sqrt()).powi(2);
        assert!((frechet_distance(&one, &two, 2) - expected).abs() < 1e-9);
        // Variances along different axes: the product of the covariances is 0.
        let two = [0.0, -1.0, 0.0, 1.0];
        assert!((frechet_distance(&one, &two, 2) - 4.0).abs() < 1e-9);
        // It does not depend on which is which, and grows with the shift.
        let wide = drawn(2, 50, 4, |column, value| value * (1.0 + column as f64));
        let [near, far] = [0.5, 1.0].map(|by| drawn(3, 50, 4, |_, value| value + by));
        let [there, back] = [frechet_distance(&same, &wide, 4), frechet_distance(&wide, &same, 4)];
        assert!((there - back).abs() < 1e-9 * there, "{there} {back}");
        assert!(frechet_distance(&same, &near, 4) < frechet_distance(&same, &far, 4));
    }

    #[test]
    fn the_deviation_is_that_of_other_samples() {
        // Distances of many pairs of samples deviate as much as the bootstrap of one pair says, within a factor.
        let (rows, dim) = (120, 3);
        let pair = |seed: u64| {
            (
                drawn(2 * seed, rows, dim, |_, value| value),
                drawn(2 * seed + 1, rows, dim, |_, value| value + 1.0),
            )
        };
        let distances: Vec<f64> = (10..40)
            .map(|seed| {
                let (one, two) = pair(seed);
                frechet_distance(&one, &two, dim)
            })
            .collect();
        let mean = distances.iter().sum::<f64>() / 30.0;
        let true_deviation = (distances.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / 29.0).sqrt();
        let (one, two) = pair(3);
        let found = frechet_deviation(&one, &two, dim);
        assert!((0.5..2.0).contains(&(found / true_deviation)), "{found} and {true_deviation}");
        assert_eq!(found, frechet_deviation(&one, &two, dim));
    }

    #[test]
    fn fewer_rows_than_features_are_no_hindrance() {
        let (one, two) = (drawn(4, 5, 12, |_, value| value), drawn(5, 7, 12, |_, value| 2.0 * value));
        let distance = frechet_distance(&one, &two, 12);
        assert!(distance.is_finite() && distance > 0.0, "{distance}");
        assert!(frechet_distance(&one, &one, 12) < 1e-6);
    }
}
