//! A linear reader of features: ridge regression to the classes of an attribute, one output for each class.

use nalgebra::{DMatrix, DVector};

/// The share of a feature's variance that the penalty adds to it.
const PENALTY: f64 = 0.01;

/// Features of samples, standardised by those that a reader was fitted to.
pub(super) struct FeatureRows {
    rows: DMatrix<f64>,
}

/// The linear reader of one set of features, before its classes are known. The dual form suits features that are more than the samples.
pub(super) struct LinearReader {
    /// The decomposed products of the samples.
    products: nalgebra::Cholesky<f64, nalgebra::Dyn>,
    fitted: FeatureRows,
    mean: DVector<f64>,
    scale: DVector<f64>,
}

impl LinearReader {
    /// Prepares a reader for rows of `dim` features. `None` if the features are not finite.
    pub(super) fn new(values: &[f32], dim: usize) -> Option<Self> {
        let rows = matrix(values, dim);
        let count = rows.nrows() as f64;
        let mean = rows.row_mean().transpose();
        let scale = DVector::from_fn(dim, |column, _| match rows.column(column).variance().sqrt() {
            deviation if deviation > 1e-9 => 1.0 / (deviation * (dim as f64).sqrt()),
            // A feature that is always the same tells nothing.
            _ => 0.0,
        });
        let fitted = FeatureRows { rows: standardised(&rows, &mean, &scale) };
        let mut products = &fitted.rows * fitted.rows.transpose();
        let penalty = PENALTY * products.trace().max(f64::MIN_POSITIVE) / count;
        (0..products.nrows()).for_each(|row| products[(row, row)] += penalty);
        Some(Self { products: nalgebra::Cholesky::new(products)?, fitted, mean, scale })
    }

    /// Returns the products of further samples with the fitted ones, from which their classes are read.
    pub(super) fn read(&self, values: &[f32]) -> FeatureRows {
        let rows = standardised(&matrix(values, self.mean.len()), &self.mean, &self.scale);
        FeatureRows { rows: rows * self.fitted.rows.transpose() }
    }

    /// Fits the classes of the samples, and returns the share of the read ones whose class is found.
    pub(super) fn accuracy(&self, classes: &[u32], read: &FeatureRows, truth: &[u32]) -> f64 {
        let number = classes.iter().chain(truth).max().map_or(0, |largest| *largest as usize + 1);
        let centred = |row: usize, class: usize| {
            f64::from(u8::from(classes[row] as usize == class)) - 1.0 / number as f64
        };
        let weights = self.products.solve(&DMatrix::from_fn(classes.len(), number, centred));
        let scores = &read.rows * weights;
        let right = truth
            .iter()
            .enumerate()
            .filter(|(row, class)| scores.row(*row).transpose().imax() == **class as usize);
        right.count() as f64 / truth.len().max(1) as f64
    }
}

/// Returns the accuracy of always answering the most frequent class of `classes`.
pub(super) fn chance(classes: &[u32], truth: &[u32]) -> f64 {
    let number = classes.iter().max().map_or(0, |largest| *largest as usize + 1);
    let mut counts = vec![0_usize; number];
    classes.iter().for_each(|class| counts[*class as usize] += 1);
    // The first of equally frequent ones.
    let most = (0..number).rev().max_by_key(|class| counts[*class]).unwrap_or(0);
    truth.iter().filter(|class| **class as usize == most).count() as f64 / truth.len().max(1) as f64
}

fn matrix(values: &[f32], dim: usize) -> DMatrix<f64> {
    DMatrix::from_row_iterator(values.len() / dim.max(1), dim, values.iter().map(|value| f64::from(*value)))
}

fn standardised(rows: &DMatrix<f64>, mean: &DVector<f64>, scale: &DVector<f64>) -> DMatrix<f64> {
    DMatrix::from_fn(rows.nrows(), rows.ncols(), |row, column| {
        (rows[(row, column)] - mean[column]) * scale[column]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of `dim` numbers from a fixed sequence.
    fn rows(count: usize, dim: usize, seed: u64) -> Vec<f32> {
        let mut values = vec![0.0; count * dim];
        phalanx_tensor::Key::new(seed).normal(0, &mut values);
        values.into_iter().map(|value| value as f32).collect()
    }

    #[test]
    fn classes_that_are_linear_in_features_are_read_and_others_are_not() {
        let (dim, fitted, read) = (12, rows(1000, 12, 1), rows(500, 12, 2));
        let linear = |rows: &[f32]| -> Vec<u32> {
            rows.chunks_exact(dim).map(|row| u32::from(row[0] + 0.5 * row[3] > 0.0)).collect()
        };
        // The sign of a product is not linear.
        let product = |rows: &[f32]| -> Vec<u32> {
            rows.chunks_exact(dim).map(|row| u32::from(row[1] * row[2] > 0.0)).collect()
        };
        let reader = LinearReader::new(&fitted, dim).expect("finite features");
        let seen = reader.read(&read);
        let found = reader.accuracy(&linear(&fitted), &seen, &linear(&read));
        assert!(found > 0.9, "{found}");
        let not_found = reader.accuracy(&product(&fitted), &seen, &product(&read));
        assert!((0.35..0.65).contains(&not_found), "{not_found}");
    }

    #[test]
    fn features_may_be_more_than_samples_and_constant() {
        let mut fitted = rows(20, 100, 3);
        fitted.chunks_exact_mut(100).for_each(|row| row[7] = 2.0);
        let reader = LinearReader::new(&fitted, 100).expect("finite features");
        let classes: Vec<u32> = (0..20).map(|at| at % 3).collect();
        let found = reader.accuracy(&classes, &reader.read(&fitted), &classes);
        assert!(found > 0.99, "what was fitted is found: {found}");
        assert!(LinearReader::new(&[f32::NAN; 6], 2).is_none());
    }

    #[test]
    fn chance_is_the_most_frequent_class() {
        assert_eq!(chance(&[0, 1, 1, 2], &[1, 1, 0, 1]), 0.75);
        assert_eq!(chance(&[2, 0], &[0, 0]), 1.0, "the first of equally frequent ones");
    }
}
