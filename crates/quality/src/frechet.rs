//! The Fréchet distance of two sets of features (Heusel et al. 2017): the distance of normal distributions with their means and
//! covariances.

use nalgebra::{DMatrix, DVector, SymmetricEigen};
use phalanx_array::Key;

use crate::error::QualityError;
use crate::rows::Rows;

/// The number of resamplings of [`frechet_deviation`].
const RESAMPLINGS: u64 = 20;

/// The largest matrix of [`frechet_deviation`].
const LARGEST: usize = 512;

/// Computes ‖μ₁ − μ₂‖² + tr(Σ₁ + Σ₂ − 2 (Σ₁ Σ₂)^½) of the rows of two sets; 0 for equal sets. It is larger for fewer rows: compare only
/// values of equally many.
///
/// # Errors
/// If a set has no rows, or rows have different features.
pub fn frechet_distance(one: Rows<'_>, two: Rows<'_>) -> Result<f64, QualityError> {
    one.check_comparable(&two)?;
    match one.count().min(two.count()) {
        0 => Err(QualityError::Empty),
        _ => Ok(distance(one, two)),
    }
}

/// Computes the distance of two sets with rows.
fn distance(one: Rows<'_>, two: Rows<'_>) -> f64 {
    let dim = one.width();
    let (one, two) = (Centred::of(one), Centred::of(two));
    let cross = match one.rows.nrows().min(two.rows.nrows()) < dim {
        true => cross_of_rows(&one, &two),
        false => cross_of_covariances(&one, &two),
    };
    let spread = one.rows.norm_squared() + two.rows.norm_squared();
    ((one.mean - two.mean).norm_squared() + spread - 2.0 * cross).max(0.0)
}

/// Rows of features without their mean, scaled so that the product with their transpose is the unbiased covariance.
struct Centred {
    mean: DVector<f64>,
    rows: DMatrix<f64>,
}

impl Centred {
    fn of(rows: Rows<'_>) -> Self {
        let (count, dim) = (rows.count(), rows.width());
        let values = rows.values().iter().map(|value| f64::from(*value));
        let values = DMatrix::from_row_iterator(count, dim, values);
        let mean = values.row_mean().transpose();
        let scale = 1.0 / ((count.max(2) - 1) as f64).sqrt();
        let rows = DMatrix::from_fn(count, dim, |row, column| scale * (values[(row, column)] - mean[column]));
        Self { mean, rows }
    }

    fn covariance(&self) -> DMatrix<f64> {
        self.rows.transpose() * &self.rows
    }
}

/// Computes tr (Σ₁ Σ₂)^½ as the trace of the symmetric (Σ₁^½ Σ₂ Σ₁^½)^½. It avoids complex numbers, and the offsets that general matrix
/// roots need for singular covariances.
fn cross_of_covariances(one: &Centred, two: &Centred) -> f64 {
    let eigen = SymmetricEigen::new(one.covariance());
    let roots = eigen.eigenvalues.map(|value| value.max(0.0).sqrt());
    let root = &eigen.eigenvectors * DMatrix::from_diagonal(&roots) * eigen.eigenvectors.transpose();
    sum_of_roots(&(&root * two.covariance() * &root))
}

/// Computes tr (Σ₁ Σ₂)^½ from the products of all rows, which are smaller than covariances if rows are few: of Σ₁ = AᵀA and Σ₂ = BᵀB it
/// is the sum of the singular values of A·Bᵀ.
fn cross_of_rows(one: &Centred, two: &Centred) -> f64 {
    let products = &one.rows * two.rows.transpose();
    sum_of_roots(&match products.nrows() <= products.ncols() {
        true => &products * products.transpose(),
        false => products.transpose() * &products,
    })
}

/// Adds up the roots of the eigenvalues of a symmetric matrix.
fn sum_of_roots(symmetric: &DMatrix<f64>) -> f64 {
    // Rounding makes it slightly asymmetric, and zeros slightly negative.
    let symmetric = (symmetric + symmetric.transpose()) * 0.5;
    symmetric.symmetric_eigenvalues().iter().map(|value| value.max(0.0).sqrt()).sum()
}

/// Returns the standard deviation of the distance of other samples of as many rows, estimated by drawing rows of both sets with
/// replacement (the bootstrap, Efron 1979). It is the same in every call. `None` if it would take minutes: of more than 512 rows of more
/// than 512 features.
///
/// # Errors
/// The errors of [`frechet_distance`].
pub fn frechet_deviation(one: Rows<'_>, two: Rows<'_>) -> Result<Option<f64>, QualityError> {
    one.check_comparable(&two)?;
    if one.count().min(two.count()) == 0 {
        return Err(QualityError::Empty);
    }
    if one.width().min(one.count()) > LARGEST {
        return Ok(None);
    }
    let key = Key::new(0).stream("frechet deviation");
    let distances: Vec<f64> = (0..RESAMPLINGS)
        .map(|number| {
            let key = key.index(number);
            let [drawn, other] = [(one, 0), (two, 1)].map(|(rows, set)| resampled(rows, key.index(set)));
            Ok(distance(Rows::new(&drawn, one.width())?, Rows::new(&other, two.width())?))
        })
        .collect::<Result<_, QualityError>>()?;
    let mean = distances.iter().sum::<f64>() / RESAMPLINGS as f64;
    let squares = distances.iter().map(|distance| (distance - mean).powi(2)).sum::<f64>();
    Ok(Some((squares / (RESAMPLINGS - 1) as f64).sqrt()))
}

/// Draws as many rows with replacement.
fn resampled(rows: Rows<'_>, key: Key) -> Vec<f32> {
    let (count, dim) = (rows.count(), rows.width());
    let mut drawn = vec![0.0; count];
    key.uniform(0, &mut drawn);
    let row = |number: f64| {
        let at = ((number * count as f64) as usize).min(count.saturating_sub(1));
        &rows.values()[at * dim..(at + 1) * dim]
    };
    drawn.into_iter().flat_map(row).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frechet_distance(one: &[f32], two: &[f32], dim: usize) -> f64 {
        let [one, two] = [one, two].map(|values| Rows::new(values, dim).expect("whole rows"));
        super::frechet_distance(one, two).expect("rows of equal widths")
    }

    fn frechet_deviation(one: &[f32], two: &[f32], dim: usize) -> Option<f64> {
        let [one, two] = [one, two].map(|values| Rows::new(values, dim).expect("whole rows"));
        super::frechet_deviation(one, two).expect("rows of equal widths")
    }

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
        let found = frechet_deviation(&one, &two, dim).expect("small");
        assert!((0.5..2.0).contains(&(found / true_deviation)), "{found} and {true_deviation}");
        assert_eq!(Some(found), frechet_deviation(&one, &two, dim));
        assert_eq!(frechet_deviation(&[0.0; 600 * 513], &[0.0; 600 * 513], 513), None);
    }

    #[test]
    fn fewer_rows_than_features_are_no_hindrance() {
        let (one, two) = (drawn(4, 5, 12, |_, value| value), drawn(5, 7, 12, |_, value| 2.0 * value));
        let [few, fewer] = [&one, &two].map(|values| Centred::of(Rows::new(values, 12).expect("whole rows")));
        let ways =
            [cross_of_rows(&few, &fewer), cross_of_rows(&fewer, &few), cross_of_covariances(&few, &fewer)];
        assert!((ways[0] - ways[1]).abs() < 1e-6 && (ways[0] - ways[2]).abs() < 1e-6, "{ways:?}");
        let distance = frechet_distance(&one, &two, 12);
        assert!(distance.is_finite() && distance > 0.0, "{distance}");
        assert!(frechet_distance(&one, &one, 12) < 1e-6);
    }

    #[test]
    fn sets_without_rows_and_of_other_features_are_refused() {
        let [none, two, three] = [(0, 2), (4, 2), (6, 3)]
            .map(|(numbers, width)| Rows::new(&[1.0; 6][..numbers], width).expect("rows"));
        assert_eq!(super::frechet_distance(none, two), Err(QualityError::Empty));
        assert_eq!(super::frechet_deviation(two, none), Err(QualityError::Empty));
        let widths = Err(QualityError::Widths { one: 2, other: 3 });
        assert_eq!(super::frechet_distance(two, three), widths);
    }
}
