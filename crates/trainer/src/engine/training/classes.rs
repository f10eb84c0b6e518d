//! Classification: the scores of classes for test samples, and the measures that the engine computes from them.

use phalanx_tensor::Value;
use phalanx_tensor::loss::cross_entropy;

use super::measure::number;
use super::step::StepInput;
use crate::engine::error::TrainError;

/// The smallest number of classes with a top-5 accuracy: of five classes it is always 1.
const TOP5_CLASSES: usize = 6;

/// The classes of a classifier: a number of them, or their names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classes {
    number: usize,
    /// Empty if the data name them.
    names: Vec<String>,
}

impl From<usize> for Classes {
    /// Classes that have the names of the data's classes, or numbers if the data have none.
    fn from(number: usize) -> Self {
        Self { number, names: Vec::new() }
    }
}

impl From<Vec<String>> for Classes {
    fn from(names: Vec<String>) -> Self {
        Self { number: names.len(), names }
    }
}

impl Classes {
    /// The number of classes.
    pub(in crate::engine) fn number(&self) -> usize {
        self.number
    }

    /// Returns the names of the classes: their own, or those of the data if these are as many; numbers otherwise.
    pub(in crate::engine) fn names(&self, of_data: &[String]) -> Vec<String> {
        let known = if self.names.is_empty() { of_data } else { &self.names };
        match known.len() == self.number {
            true => known.to_vec(),
            false => (0..self.number).map(|class| class.to_string()).collect(),
        }
    }

    /// True if they have a top-5 accuracy.
    pub(in crate::engine) fn has_top5(&self) -> bool {
        self.number >= TOP5_CLASSES
    }

    /// The names of the measures that follow from all predictions, after loss and accuracy.
    pub(in crate::engine) fn measures(&self) -> Vec<&'static str> {
        let top5 = self.has_top5().then_some("top5_accuracy");
        top5.into_iter().chain(["macro_precision", "macro_recall", "macro_f1"]).collect()
    }
}

/// The measures that an evaluation computes as sums over samples, of a classifier.
pub(in crate::engine) const CLASS_SUMS: [&str; 2] = ["loss", "accuracy"];

/// The scores of the classes for the samples of a test batch.
#[derive(Debug, Clone)]
pub struct ClassScores {
    logits: Value,
    labels: Vec<u32>,
}

impl ClassScores {
    /// Creates the scores from logits `[N, classes]` and the true class of each of N samples.
    pub fn new(logits: Value, labels: Vec<u32>) -> Self {
        Self { logits, labels }
    }

    /// Computes the sums of [`CLASS_SUMS`], and the prediction of each sample.
    ///
    /// # Errors
    /// If logits, labels and classes do not match.
    pub(super) fn evaluate(&self, step: &StepInput<'_>, classes: &Classes) -> Result<Evaluated, TrainError> {
        let (dims, labels, samples) = (self.logits.dims(), &self.labels, step.batch.len());
        if dims != [samples, classes.number] || labels.len() != samples {
            return Err(TrainError::Setup(format!(
                "the evaluation of {samples} samples gives logits {dims:?} and {} labels for {} classes",
                labels.len(),
                classes.number
            )));
        }
        if let Some(label) = labels.iter().find(|label| **label as usize >= classes.number) {
            let number = classes.number;
            return Err(TrainError::Setup(format!("a test sample has label {label} of {number} classes")));
        }
        let loss = step.mean(&self.logits, |logits, rows, over| {
            cross_entropy(step.tape, logits, &labels[rows], 0.0, over)
        })?;
        let loss = number(&loss)?;
        let rows = self.logits.to_host()?.to_dtype(candle_core::DType::F32)?.to_vec2::<f32>()?;
        let weights = step.batch.weights();
        let scored = rows.iter().zip(labels).zip(weights);
        let scored: Vec<ScoredSample> = scored
            .map(|((row, label), weight)| ScoredSample::new(row, *label as usize, f64::from(*weight)))
            .collect();
        let correct = scored.iter().filter(|sample| sample.is_correct()).map(|sample| sample.weight).sum();
        Ok(Evaluated { sums: vec![loss, correct], scored })
    }
}

/// The result of an evaluation on a test batch.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::engine) struct Evaluated {
    /// For each measure, the sum over the samples.
    pub(in crate::engine) sums: Vec<f64>,
    /// The predictions of a classifier for each sample; empty otherwise.
    pub(in crate::engine) scored: Vec<ScoredSample>,
}

/// The prediction of a classifier for one sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct ScoredSample {
    pub(in crate::engine) truth: usize,
    pub(in crate::engine) predicted: usize,
    /// The number of classes with a higher score than the true one. Of equal scores the first counts as the highest.
    pub(in crate::engine) rank: usize,
    /// The probability of the predicted class.
    pub(in crate::engine) probability: f64,
    /// The probability of the true class.
    pub(in crate::engine) truth_probability: f64,
    /// The cross-entropy.
    pub(in crate::engine) loss: f64,
    pub(in crate::engine) weight: f64,
}

impl ScoredSample {
    /// Reads the logits of a sample of class `truth`.
    fn new(logits: &[f32], truth: usize, weight: f64) -> Self {
        let first_highest = |best: usize, at: usize| if logits[at] > logits[best] { at } else { best };
        let predicted = (0..logits.len()).fold(0, first_highest);
        let (highest, own) = (f64::from(logits[predicted]), logits[truth]);
        let above = |(at, logit): &(usize, &f32)| **logit > own || (**logit == own && *at < truth);
        let rank = logits.iter().enumerate().filter(above).count();
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - highest).exp()).sum();
        let loss = sum.ln() + highest - f64::from(own);
        Self {
            truth,
            predicted,
            rank,
            probability: 1.0 / sum,
            truth_probability: (-loss).exp(),
            loss,
            weight,
        }
    }

    pub(in crate::engine) fn is_correct(&self) -> bool {
        self.predicted == self.truth
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_read_from_its_logits() {
        let e = std::f64::consts::E;
        for (logits, truth, predicted, rank) in [
            (&[1.0, 0.0, 0.0][..], 0, 0, 0),
            (&[0.0, 1.0, 0.0], 2, 1, 2),
            // Of equal scores the first is the prediction.
            (&[1.0, 1.0, 0.0], 1, 0, 1),
            (&[1.0, 1.0, 0.0], 0, 0, 0),
        ] {
            let sample = ScoredSample::new(logits, truth, 1.0);
            assert_eq!((sample.predicted, sample.rank), (predicted, rank), "{logits:?} {truth}");
            assert_eq!(sample.is_correct(), rank == 0);
        }
        let sample = ScoredSample::new(&[0.0, 1.0, 0.0], 2, 0.5);
        let whole = e + 2.0;
        for (found, expected) in [
            (sample.probability, e / whole),
            (sample.truth_probability, 1.0 / whole),
            (sample.loss, whole.ln()),
        ] {
            assert!((found - expected).abs() < 1e-12, "{found} {expected}");
        }
        // Far apart, without overflow.
        assert_eq!(ScoredSample::new(&[300.0, -300.0], 1, 1.0).loss, 600.0);
    }

    #[test]
    fn classes_have_their_own_names_or_those_of_the_data() {
        let data = ["cat", "dog"].map(str::to_owned);
        assert_eq!(Classes::from(2).names(&data), data);
        assert_eq!(Classes::from(3).names(&data), ["0", "1", "2"]);
        assert_eq!(Classes::from(vec!["x".to_owned(), "y".to_owned()]).names(&data), ["x", "y"]);
        assert_eq!(Classes::from(5).measures(), ["macro_precision", "macro_recall", "macro_f1"]);
        assert_eq!(Classes::from(6).measures()[0], "top5_accuracy");
    }
}
