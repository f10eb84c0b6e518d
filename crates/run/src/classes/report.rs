//! `classes.json`: the evaluation of a classifier, class by class.

use std::path::Path;

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::confusion::{ClassScore, ConfusionMatrix};
use crate::atomic::write_aside;
use crate::folder::RunError;

/// The evaluation of a classifier on the test split.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClassReport {
    /// Steps done.
    pub step: u64,
    /// The fraction of correct predictions.
    pub accuracy: f64,
    /// The fraction of samples whose class is among the five with the highest scores; of at most five classes there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top5_accuracy: Option<f64>,
    /// The mean precision of the classes.
    pub macro_precision: f64,
    /// The mean recall of the classes.
    pub macro_recall: f64,
    /// The mean F1 score of the classes.
    pub macro_f1: f64,
    /// The classes in the order of their labels.
    pub classes: Vec<ClassRow>,
    /// The confusion matrix.
    pub confusion: ConfusionMatrix,
    /// The wrong predictions of the highest loss, the worst first.
    pub mistakes: Vec<Mistake>,
}

/// The measures of one class.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ClassRow {
    /// Its name.
    pub name: String,
    /// The sum of the weights of its test samples: their number, unless the data have weights.
    pub samples: f64,
    /// See [`ClassScore::precision`].
    pub precision: f64,
    /// See [`ClassScore::recall`].
    pub recall: f64,
    /// See [`ClassScore::f1`].
    pub f1: f64,
}

/// A wrong prediction.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Mistake {
    /// The file of the sample, or its dataset and number.
    pub sample: String,
    /// The name of the true class.
    pub truth: String,
    /// The name of the predicted class.
    pub predicted: String,
    /// The probability of the predicted class.
    pub probability: f64,
    /// The probability of the true class.
    pub truth_probability: f64,
    /// The cross-entropy.
    pub loss: f64,
}

impl ClassReport {
    /// Creates a report without mistakes and without top-5 accuracy. Names that are missing are the numbers of the classes.
    pub fn new(step: u64, names: &[String], confusion: ConfusionMatrix) -> Self {
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let row = |(class, score): (usize, ClassScore)| ClassRow {
            name: name(class),
            samples: confusion.samples(class),
            precision: score.precision,
            recall: score.recall,
            f1: score.f1,
        };
        let mean = confusion.macro_mean();
        let correct: f64 = (0..confusion.classes()).map(|class| confusion.count(class, class)).sum();
        let total = confusion.total();
        Self {
            step,
            accuracy: if total > 0.0 { correct / total } else { 0.0 },
            top5_accuracy: None,
            macro_precision: mean.precision,
            macro_recall: mean.recall,
            macro_f1: mean.f1,
            classes: confusion.scores().into_iter().enumerate().map(row).collect(),
            mistakes: Vec::new(),
            confusion,
        }
    }

    /// Returns the name of a class.
    pub fn name(&self, class: usize) -> &str {
        self.classes.get(class).map_or("", |row| row.name.as_str())
    }

    /// Writes the report atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| malformed(path, &error))?;
        bytes.push(b'\n');
        write_aside(path, &bytes).map_err(RunError::io("write", path))
    }

    /// Reads a report.
    ///
    /// # Errors
    /// If the file cannot be read or parsed.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = Links::Refuse.read(path).map_err(RunError::io("read", path))?;
        let report: Self = serde_json::from_slice(&bytes).map_err(|error| malformed(path, &error))?;
        if report.classes.len() != report.confusion.classes() {
            let (rows, classes) = (report.classes.len(), report.confusion.classes());
            let problem = format!("{rows} classes, and a confusion matrix of {classes}");
            return Err(RunError::Malformed { path: path.to_owned(), problem });
        }
        Ok(report)
    }
}

fn malformed(path: &Path, error: &serde_json::Error) -> RunError {
    RunError::Malformed { path: path.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_read_as_it_was_written() {
        let mut confusion = ConfusionMatrix::new(3);
        for (truth, predicted) in [(0, 0), (0, 1), (1, 1), (2, 2)] {
            confusion.add(truth, predicted, 1.0);
        }
        let names = ["cat", "dog"].map(str::to_owned);
        let mistake = Mistake { sample: "test/cat/1.png".into(), loss: 0.1 + 0.2, ..Mistake::default() };
        let report = ClassReport { mistakes: vec![mistake], ..ClassReport::new(7, &names, confusion) };
        assert_eq!((report.accuracy, report.name(1), report.name(2)), (0.75, "dog", "2"));
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("classes.json");
        report.write(&path).expect("writes");
        assert_eq!(ClassReport::read(&path).expect("reads"), report);
        let mut broken = report;
        broken.classes.pop();
        broken.write(&path).expect("writes");
        let error = ClassReport::read(&path).expect_err("a row is missing").to_string();
        assert!(error.contains("2 classes, and a confusion matrix of 3"), "{error}");
    }
}
