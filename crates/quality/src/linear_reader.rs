//! A linear reader of features: ridge regression to the classes of an attribute, one output for each class.

use nalgebra::{DMatrix, DVector};

use crate::error::QualityError;
use crate::rows::Rows;

/// The share of a feature's variance that the penalty adds to it.
const PENALTY: f64 = 0.01;

/// Samples whose classes a reader can read: their products with the samples that it was prepared from.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadRows {
    products: DMatrix<f64>,
}

/// The linear reader of one set of features, before its classes are known. The dual form suits features that are more than the samples.
#[derive(Debug, Clone)]
pub struct LinearReader {
    /// The decomposed products of the samples.
    products: nalgebra::Cholesky<f64, nalgebra::Dyn>,
    /// The samples, standardised.
    fitted: DMatrix<f64>,
    mean: DVector<f64>,
    scale: DVector<f64>,
}

impl LinearReader {
    /// Prepares a reader from the features of samples.
    ///
    /// # Errors
    /// If there are no samples, or a feature is not finite.
    pub fn new(rows: Rows<'_>) -> Result<Self, QualityError> {
        let (dim, rows) = (rows.width(), matrix(rows));
        if rows.nrows() == 0 {
            return Err(QualityError::Empty);
        }
        let count = rows.nrows() as f64;
        let mean = rows.row_mean().transpose();
        let scale = DVector::from_fn(dim, |column, _| match rows.column(column).variance().sqrt() {
            deviation if deviation > 1e-9 => 1.0 / (deviation * (dim as f64).sqrt()),
            // A feature that is always the same tells nothing.
            _ => 0.0,
        });
        let fitted = standardised(&rows, &mean, &scale);
        let mut products = &fitted * fitted.transpose();
        let penalty = PENALTY * products.trace().max(f64::MIN_POSITIVE) / count;
        (0..products.nrows()).for_each(|row| products[(row, row)] += penalty);
        let products = nalgebra::Cholesky::new(products).ok_or(QualityError::NotFinite)?;
        Ok(Self { products, fitted, mean, scale })
    }

    /// Prepares further samples, so that their classes can be read.
    ///
    /// # Errors
    /// [`QualityError::Widths`] if they have other features.
    pub fn read(&self, rows: Rows<'_>) -> Result<ReadRows, QualityError> {
        let known = self.mean.len();
        if rows.width() != known {
            return Err(QualityError::Widths { one: known, other: rows.width() });
        }
        let rows = standardised(&matrix(rows), &self.mean, &self.scale);
        Ok(ReadRows { products: rows * self.fitted.transpose() })
    }

    /// Fits the classes of the samples, and returns the share of the read ones whose class, in `truth`, is found.
    ///
    /// # Errors
    /// [`QualityError::Classes`] if there is not one class for each row.
    pub fn accuracy(&self, classes: &[u32], read: &ReadRows, truth: &[u32]) -> Result<f64, QualityError> {
        for (classes, rows) in [(classes, &self.fitted), (truth, &read.products)] {
            let (classes, rows) = (classes.len(), rows.nrows());
            if classes != rows {
                return Err(QualityError::Classes { classes, rows });
            }
        }
        let number = classes.iter().chain(truth).max().map_or(0, |largest| *largest as usize + 1);
        let centred = |row: usize, class: usize| {
            f64::from(u8::from(classes[row] as usize == class)) - 1.0 / number as f64
        };
        let weights = self.products.solve(&DMatrix::from_fn(classes.len(), number, centred));
        let scores = &read.products * weights;
        let right = truth
            .iter()
            .enumerate()
            .filter(|(row, class)| scores.row(*row).transpose().imax() == **class as usize);
        Ok(right.count() as f64 / truth.len().max(1) as f64)
    }
}

/// Returns the accuracy of always answering the most frequent class of `classes` where `truth` is right.
#[must_use]
pub fn chance(classes: &[u32], truth: &[u32]) -> f64 {
    let number = classes.iter().max().map_or(0, |largest| *largest as usize + 1);
    let mut counts = vec![0_usize; number];
    classes.iter().for_each(|class| counts[*class as usize] += 1);
    // The first of equally frequent ones.
    let most = (0..number).rev().max_by_key(|class| counts[*class]).unwrap_or(0);
    truth.iter().filter(|class| **class as usize == most).count() as f64 / truth.len().max(1) as f64
}

fn matrix(rows: Rows<'_>) -> DMatrix<f64> {
    let values = rows.values().iter().map(|value| f64::from(*value));
    DMatrix::from_row_iterator(rows.count(), rows.width(), values)
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
        phalanx_array::Key::new(seed).normal(0, &mut values);
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
        let of = |values| Rows::new(values, dim).expect("whole rows");
        let reader = LinearReader::new(of(&fitted)).expect("finite features");
        let seen = reader.read(of(&read)).expect("the same features");
        let accuracy = |classes: &dyn Fn(&[f32]) -> Vec<u32>| {
            reader.accuracy(&classes(&fitted), &seen, &classes(&read)).expect("a class a row")
        };
        let found = accuracy(&linear);
        assert!(found > 0.9, "{found}");
        let not_found = accuracy(&product);
        assert!((0.35..0.65).contains(&not_found), "{not_found}");
    }

    #[test]
    fn features_may_be_more_than_samples_and_constant() {
        let mut fitted = rows(20, 100, 3);
        fitted.chunks_exact_mut(100).for_each(|row| row[7] = 2.0);
        let fitted = Rows::new(&fitted, 100).expect("whole rows");
        let reader = LinearReader::new(fitted).expect("finite features");
        let classes: Vec<u32> = (0..20).map(|at| at % 3).collect();
        let read = reader.read(fitted).expect("the same features");
        let found = reader.accuracy(&classes, &read, &classes).expect("a class a row");
        assert!(found > 0.99, "what was fitted is found: {found}");
        let too_few = QualityError::Classes { classes: 19, rows: 20 };
        assert_eq!(reader.accuracy(&classes[1..], &read, &classes), Err(too_few.clone()));
        assert_eq!(reader.accuracy(&classes, &read, &classes[1..]), Err(too_few));
        let narrow = Rows::new(&[1.0; 6], 2).expect("whole rows");
        assert_eq!(reader.read(narrow), Err(QualityError::Widths { one: 100, other: 2 }));
    }

    #[test]
    fn no_reader_is_made_of_features_that_tell_nothing() {
        let new =
            |values| LinearReader::new(Rows::new(values, 2).expect("whole rows")).expect_err("no reader");
        assert_eq!(new(&[f32::NAN; 6]), QualityError::NotFinite);
        assert_eq!(new(&[]), QualityError::Empty);
    }

    #[test]
    fn chance_is_the_most_frequent_class() {
        assert_eq!(chance(&[0, 1, 1, 2], &[1, 1, 0, 1]), 0.75);
        assert_eq!(chance(&[2, 0], &[0, 0]), 1.0, "the first of equally frequent ones");
    }
}
