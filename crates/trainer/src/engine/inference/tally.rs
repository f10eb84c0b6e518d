//! The predictions of a classifier, counted over the samples and summed over the ranks.

use phalanx_run::ConfusionMatrix;
use serde::{Deserialize, Serialize};

use crate::engine::distributed::Distributed;
use crate::engine::error::TrainError;
use crate::engine::training::{Classes, ScoredSample};

/// The predictions of a classifier on the test split.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::engine) struct ClassTally {
    pub(in crate::engine) confusion: ConfusionMatrix,
    /// The weights of the samples whose class is among the five with the highest scores.
    top5: f64,
    /// The wrong predictions of the highest loss, the worst first.
    pub(in crate::engine) worst: Vec<WrongPrediction>,
    /// The number of wrong predictions that are kept.
    keep: usize,
}

/// A wrong prediction, and the position of its sample in the pass over the test split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::engine) struct WrongPrediction {
    pub(in crate::engine) position: usize,
    pub(in crate::engine) truth: usize,
    pub(in crate::engine) predicted: usize,
    pub(in crate::engine) probability: f64,
    pub(in crate::engine) truth_probability: f64,
    pub(in crate::engine) loss: f64,
}

impl ClassTally {
    /// Creates an empty tally that keeps at most `keep` wrong predictions.
    pub(in crate::engine) fn new(classes: &Classes, keep: usize) -> Self {
        Self { confusion: ConfusionMatrix::new(classes.number()), top5: 0.0, worst: Vec::new(), keep }
    }

    /// Adds the samples of a batch. Padding has weight 0 and does not count.
    pub(in crate::engine) fn add(&mut self, samples: &[ScoredSample], positions: &[usize]) {
        for (sample, position) in samples.iter().zip(positions).filter(|(sample, _)| sample.weight > 0.0) {
            self.confusion.add(sample.truth, sample.predicted, sample.weight);
            if sample.rank < 5 {
                self.top5 += sample.weight;
            }
            if !sample.is_correct() && sample.loss.is_finite() {
                self.worst.push(WrongPrediction {
                    position: *position,
                    truth: sample.truth,
                    predicted: sample.predicted,
                    probability: sample.probability,
                    truth_probability: sample.truth_probability,
                    loss: sample.loss,
                });
            }
        }
        self.sort_worst();
    }

    /// Sorts the wrong predictions. Of equal losses the first position comes first, on any number of ranks.
    fn sort_worst(&mut self) {
        self.worst.sort_by(|a, b| b.loss.total_cmp(&a.loss).then(a.position.cmp(&b.position)));
        self.worst.truncate(self.keep);
    }

    /// Sums the tallies of all ranks, with other `sums`, in one all-reduce. Counts are whole numbers unless samples have weights, so any
    /// number of ranks has the same. All ranks call this together.
    pub(in crate::engine) fn sum(
        &mut self,
        distributed: &Distributed,
        sums: &mut [f64],
    ) -> Result<(), TrainError> {
        let mut all = Vec::with_capacity(sums.len() + 1 + self.confusion.counts().len());
        all.extend_from_slice(sums);
        all.push(self.top5);
        all.extend_from_slice(self.confusion.counts());
        let exchange = distributed.exchange();
        exchange.sum(&mut all)?;
        let (first, counts) = all.split_at(sums.len() + 1);
        sums.copy_from_slice(&first[..sums.len()]);
        self.top5 = first[sums.len()];
        self.confusion.counts_mut().copy_from_slice(counts);
        let malformed = |error: serde_json::Error| {
            TrainError::Setup(format!("malformed predictions of another rank: {error}"))
        };
        let own = serde_json::to_string(&self.worst).map_err(malformed)?;
        self.worst.clear();
        for text in exchange.gather_text(&own)? {
            self.worst.extend(serde_json::from_str::<Vec<WrongPrediction>>(&text).map_err(malformed)?);
        }
        self.sort_worst();
        Ok(())
    }

    /// Empties the tally of a rank whose samples another rank counts.
    pub(in crate::engine) fn clear(&mut self) {
        *self = Self {
            confusion: ConfusionMatrix::new(self.confusion.classes()),
            top5: 0.0,
            worst: Vec::new(),
            keep: self.keep,
        };
    }

    /// The fraction of samples whose class is among the five with the highest scores; 0 without samples.
    pub(in crate::engine) fn top5_accuracy(&self) -> f64 {
        let total = self.confusion.total();
        if total > 0.0 { self.top5 / total } else { 0.0 }
    }

    /// The values of [`Classes::measures`], with their names.
    pub(in crate::engine) fn measures(&self, classes: &Classes) -> Vec<(String, f64)> {
        let mean = self.confusion.macro_mean();
        let value = |name: &'static str| match name {
            "top5_accuracy" => self.top5_accuracy(),
            "macro_precision" => mean.precision,
            "macro_recall" => mean.recall,
            _ => mean.f1,
        };
        classes.measures().into_iter().map(|name| (name.to_owned(), value(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    fn sample(at: usize) -> ScoredSample {
        let (truth, predicted) = (at % 7, (at * at) % 7);
        ScoredSample {
            truth,
            predicted,
            rank: if truth == predicted { 0 } else { 1 + at % 6 },
            probability: 0.5,
            truth_probability: 0.25,
            // Equal losses are in the order of positions.
            loss: (at % 5) as f64,
            weight: 1.0,
        }
    }

    /// The tally of 100 samples, of which rank `rank` of `ranks` counts every `ranks`-th.
    fn tally(rank: usize, ranks: usize) -> ClassTally {
        let mut tally = ClassTally::new(&Classes::from(7), 4);
        for at in (rank..100).step_by(ranks) {
            tally.add(&[sample(at), ScoredSample { weight: 0.0, ..sample(at) }], &[at, at + 1000]);
        }
        tally
    }

    #[test]
    fn ranks_together_count_what_one_counts() {
        let mut alone = tally(0, 1);
        let mut expected = [3.5];
        alone.sum(&Distributed::none(), &mut expected).expect("alone");
        assert_eq!(alone.confusion.total(), 100.0);
        let within = (0..100).map(sample).filter(|sample| sample.rank < 5).count() as f64 / 100.0;
        assert_eq!(alone.measures(&Classes::from(7))[0], ("top5_accuracy".to_owned(), within));
        let worst: Vec<usize> = alone.worst.iter().map(|worst| worst.position).collect();
        assert!(worst.is_sorted() && worst.iter().all(|at| at % 5 == 4) && worst.len() == 4, "{worst:?}");
        for ranks in [2, 3] {
            let work = |(rank, communicator)| {
                std::thread::spawn(move || {
                    let distributed = Distributed::among(communicator).expect("threads");
                    let mut own = tally(rank, ranks);
                    let mut sums = [if rank == 0 { 3.5 } else { 0.0 }];
                    own.sum(&distributed, &mut sums).expect("all are here");
                    (own, sums)
                })
            };
            let running: Vec<_> =
                threads(ranks).expect("threads").into_iter().enumerate().map(work).collect();
            for rank in running {
                assert_eq!(rank.join().expect("no panic"), (alone.clone(), expected), "{ranks} ranks");
            }
        }
    }
}
