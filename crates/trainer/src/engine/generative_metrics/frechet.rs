//! The Fréchet distance of two sets of features (Heusel et al. 2017): the distance of normal distributions with their means and
//! covariances.

use nalgebra::{DMatrix, DVector, SymmetricEigen};

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
    use phalanx_tensor::Key;

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
    fn fewer_rows_than_features_are_no_hindrance() {
        let (one, two) = (drawn(4, 5, 12, |_, value| value), drawn(5, 7, 12, |_, value| 2.0 * value));
        let distance = frechet_distance(&one, &two, 12);
        assert!(distance.is_finite() && distance > 0.0, "{distance}");
        assert!(frechet_distance(&one, &one, 12) < 1e-6);
    }
}
