//! Confusion matrices, and the measures that follow from them.

use serde::de::Error as _;
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A confusion matrix: the sum of the samples' weights for each true and each predicted class.
///
/// In JSON it is a list of rows, one for each true class, as in scikit-learn.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ConfusionMatrix {
    classes: usize,
    /// Row by row.
    counts: Vec<f64>,
}

/// The quality of the predictions of one class, or a mean over classes.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ClassScore {
    /// The fraction of the samples predicted as the class that belong to it; 0 if none is predicted.
    pub precision: f64,
    /// The fraction of the samples of the class that are predicted as it; 0 if there is no sample.
    pub recall: f64,
    /// The harmonic mean of both; 0 if both are 0.
    pub f1: f64,
}

/// Samples of one class that are predicted as another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Confused {
    /// The true class.
    pub truth: usize,
    /// The predicted class.
    pub predicted: usize,
    /// The sum of the weights of the samples.
    pub count: f64,
}

impl ConfusionMatrix {
    /// Creates a matrix of zeros.
    pub fn new(classes: usize) -> Self {
        Self { classes, counts: vec![0.0; classes * classes] }
    }

    /// Returns the number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Adds a sample. Classes that the matrix does not have are ignored.
    pub fn add(&mut self, truth: usize, predicted: usize, weight: f64) {
        if truth < self.classes && predicted < self.classes {
            self.counts[truth * self.classes + predicted] += weight;
        }
    }

    /// Returns all counts, row by row.
    pub fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// Returns all counts, row by row, to be summed over ranks.
    pub fn counts_mut(&mut self) -> &mut [f64] {
        &mut self.counts
    }

    /// Returns the count of one cell.
    pub fn count(&self, truth: usize, predicted: usize) -> f64 {
        self.row(truth).get(predicted).copied().unwrap_or_default()
    }

    /// Returns the counts of a true class, by predicted class.
    pub fn row(&self, truth: usize) -> &[f64] {
        self.counts.get(truth * self.classes..(truth + 1) * self.classes).unwrap_or_default()
    }

    /// Returns the sum of all weights.
    pub fn total(&self) -> f64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the weights of a class's samples.
    pub fn samples(&self, truth: usize) -> f64 {
        self.row(truth).iter().sum()
    }

    /// Returns the scores of all classes.
    pub fn scores(&self) -> Vec<ClassScore> {
        let predicted = self.predicted();
        (0..self.classes).map(|class| self.score(class, predicted[class])).collect()
    }

    /// Returns the unweighted means of the classes' scores, without classes that have neither samples nor predictions, as scikit-learn and
    /// torchmetrics do.
    pub fn macro_mean(&self) -> ClassScore {
        let predicted = self.predicted();
        let mut sum = ClassScore::default();
        let mut number = 0.0;
        for (class, predicted) in predicted.into_iter().enumerate() {
            if predicted == 0.0 && self.samples(class) == 0.0 {
                continue;
            }
            let score = self.score(class, predicted);
            number += 1.0;
            sum.precision += score.precision;
            sum.recall += score.recall;
            sum.f1 += score.f1;
        }
        let mean = |sum: f64| ratio(sum, number);
        ClassScore { precision: mean(sum.precision), recall: mean(sum.recall), f1: mean(sum.f1) }
    }

    /// Returns the pairs of classes with the most wrong predictions, at most `limit`; equal ones in the order of classes.
    pub fn most_confused(&self, limit: usize) -> Vec<Confused> {
        let mut found: Vec<Confused> = Vec::new();
        for (at, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
            let (truth, predicted) = (at / self.classes, at % self.classes);
            if truth != predicted {
                found.push(Confused { truth, predicted, count: *count });
            }
        }
        // The sort is stable.
        found.sort_by(|a, b| b.count.total_cmp(&a.count));
        found.truncate(limit);
        found
    }

    /// The sums of the columns.
    fn predicted(&self) -> Vec<f64> {
        let mut sums = vec![0.0; self.classes];
        for row in self.counts.chunks_exact(self.classes.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, count)| *sum += count);
        }
        sums
    }

    fn score(&self, class: usize, predicted: f64) -> ClassScore {
        let correct = self.count(class, class);
        let samples = self.samples(class);
        ClassScore {
            precision: ratio(correct, predicted),
            recall: ratio(correct, samples),
            f1: ratio(2.0 * correct, predicted + samples),
        }
    }
}

/// A quotient; 0 if nothing is divided by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// A row of a matrix in JSON: whole numbers without a fraction.
struct Row<'a>(&'a [f64]);

impl Serialize for Row<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_seq(Some(self.0.len()))?;
        for count in self.0 {
            match count.fract() == 0.0 && (0.0..9e15).contains(count) {
                true => row.serialize_element(&(*count as u64))?,
                false => row.serialize_element(count)?,
            }
        }
        row.end()
    }
}

impl Serialize for ConfusionMatrix {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rows = serializer.serialize_seq(Some(self.classes))?;
        for row in self.counts.chunks_exact(self.classes.max(1)) {
            rows.serialize_element(&Row(row))?;
        }
        rows.end()
    }
}

impl<'de> Deserialize<'de> for ConfusionMatrix {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let rows: Vec<Vec<f64>> = Vec::deserialize(deserializer)?;
        let classes = rows.len();
        if let Some(row) = rows.iter().find(|row| row.len() != classes) {
            return Err(D::Error::custom(format!("a row of {} counts for {classes} classes", row.len())));
        }
        Ok(Self { classes, counts: rows.concat() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(rows: &[&[f64]]) -> ConfusionMatrix {
        let mut matrix = ConfusionMatrix::new(rows.len());
        for (truth, row) in rows.iter().enumerate() {
            row.iter().enumerate().for_each(|(predicted, count)| matrix.add(truth, predicted, *count));
        }
        matrix
    }

    #[test]
    fn scores_agree_with_hand_computed_values() {
        let three = matrix(&[&[5.0, 1.0, 0.0], &[2.0, 3.0, 1.0], &[0.0, 0.0, 4.0]]);
        let scores = three.scores();
        for (class, [precision, recall, f1]) in [
            (0, [5.0 / 7.0, 5.0 / 6.0, 10.0 / 13.0]),
            (1, [3.0 / 4.0, 0.5, 0.6]),
            (2, [4.0 / 5.0, 1.0, 8.0 / 9.0]),
        ] {
            let score = scores[class];
            for (found, expected) in [(score.precision, precision), (score.recall, recall), (score.f1, f1)] {
                assert!((found - expected).abs() < 1e-12, "class {class}: {found} {expected}");
            }
        }
        let mean = three.macro_mean();
        assert!((mean.recall - (5.0 / 6.0 + 0.5 + 1.0) / 3.0).abs() < 1e-12);
        assert!((mean.f1 - (10.0 / 13.0 + 0.6 + 8.0 / 9.0) / 3.0).abs() < 1e-12);
        assert_eq!((three.total(), three.samples(1)), (16.0, 6.0));
        let pairs: Vec<_> =
            three.most_confused(2).iter().map(|pair| (pair.truth, pair.predicted, pair.count)).collect();
        assert_eq!(pairs, [(1, 0, 2.0), (0, 1, 1.0)]);
    }

    #[test]
    fn classes_without_samples_and_predictions_do_not_count() {
        // Class 1 is missing, class 2 is only predicted, class 3 is never predicted.
        let rows: [&[f64]; 4] = [&[2.0, 0.0, 1.0, 0.0], &[0.0; 4], &[0.0; 4], &[1.0, 0.0, 0.0, 0.0]];
        let some = matrix(&rows);
        assert_eq!(some.scores()[1], ClassScore::default());
        let mean = some.macro_mean();
        assert!((mean.precision - (2.0 / 3.0 + 0.0 + 0.0) / 3.0).abs() < 1e-12, "{mean:?}");
        assert!((mean.recall - (2.0 / 3.0) / 3.0).abs() < 1e-12, "{mean:?}");
        assert_eq!(ConfusionMatrix::new(3).macro_mean(), ClassScore::default());
    }

    #[test]
    fn a_matrix_is_read_as_it_was_written() {
        let some = matrix(&[&[3.0, 0.5], &[0.0, 1e6]]);
        let text = serde_json::to_string(&some).expect("finite");
        assert_eq!(text, "[[3,0.5],[0,1000000]]");
        assert_eq!(serde_json::from_str::<ConfusionMatrix>(&text).expect("square"), some);
        let error =
            serde_json::from_str::<ConfusionMatrix>("[[1,2],[3]]").expect_err("not square").to_string();
        assert!(error.contains("a row of 1 counts for 2 classes"), "{error}");
        assert_eq!(serde_json::from_str::<ConfusionMatrix>("[]").expect("empty"), ConfusionMatrix::new(0));
    }
}
