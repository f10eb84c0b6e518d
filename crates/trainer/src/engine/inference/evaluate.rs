//! Evaluation on the test split.

use phalanx_tensor::{Session, Tape};

use super::tally::ClassTally;
use crate::engine::data::{Data, TestBatch};
use crate::engine::distributed::{BatchGroups, Distributed};
use crate::engine::error::TrainError;
use crate::engine::stages::StagedEvaluation;
use crate::engine::training::{AnyTraining, CLASS_SUMS, StepInput, TrainingOutline};

/// A pass over the test split.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct TestPass {
    /// Steps done.
    pub(in crate::engine) step: u64,
    /// Upper limit of test samples; 0 = all.
    pub(in crate::engine) limit: usize,
    /// Samples of a batch.
    pub(in crate::engine) batch: usize,
    /// The number of wrong predictions that a classifier keeps.
    pub(in crate::engine) mistakes: usize,
}

/// The results of an evaluation, over all ranks. A server has none.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct TestResult {
    /// Means by name.
    pub(in crate::engine) measures: Vec<(String, f64)>,
    /// The predictions of a classifier.
    pub(in crate::engine) classes: Option<ClassTally>,
}

/// The sums of a rank over its test samples.
struct TestSums {
    outline: TrainingOutline,
    /// The sum of each measure; the last is of the samples' weights.
    sums: Vec<f64>,
    classes: Option<ClassTally>,
}

/// Evaluates a training on the test split. All ranks call this together. The session has a listener if parameters are gathered block by
/// block.
pub(in crate::engine) fn evaluate(
    training: &dyn AnyTraining,
    data: &Data,
    distributed: &Distributed,
    groups: &BatchGroups,
    session: &Session,
    stages: Option<&StagedEvaluation>,
    pass: TestPass,
) -> Result<TestResult, TrainError> {
    let TestPass { step, limit, batch, mistakes } = pass;
    let mut sums = TestSums::new(training.outline(), mistakes);
    if distributed.is_server() {
        // The others find for each batch the ranks with samples.
        for _ in 0..data.test_steps(distributed, limit, batch)? {
            distributed.exchange().sum_of(0.0)?;
        }
        sums.reduce(distributed)?;
        return Ok(TestResult::default());
    }
    for batch in data.test_batches(distributed, limit, batch)? {
        let TestBatch { batch, positions, counts } = batch?;
        // Ranks with samples contrast them together.
        let has_samples = counts && distributed.has_results();
        let ranks = distributed.exchange().sum_of(f64::from(u8::from(has_samples)))? as usize;
        let batch_group = groups.first(ranks.max(1))?.filter(|_| counts);
        if !counts && session.listener.is_none() {
            continue;
        }
        let session = &Session { batch_group, ..session.clone() };
        let evaluate = |tape: &Tape| training.evaluate(&StepInput::new(tape, &batch, 1.0, step, session.key));
        let evaluated = match stages {
            Some(stages) => stages.run(session, evaluate)?,
            None => Some(evaluate(&Tape::forward_only(session.clone()))?),
        };
        let Some(evaluated) = evaluated else { continue };
        if !counts {
            // This rank only took part in gathering parameters.
            continue;
        }
        let values = evaluated.sums.into_iter().chain([batch.weight()]);
        sums.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        if let Some(classes) = &mut sums.classes {
            classes.add(&evaluated.scored, &positions);
        }
    }
    if !distributed.has_results() {
        sums.clear();
    }
    sums.reduce(distributed)?;
    Ok(sums.result())
}

impl TestSums {
    fn new(outline: TrainingOutline, mistakes: usize) -> Self {
        let classes = outline.classes.as_ref().map(|classes| ClassTally::new(classes, mistakes));
        Self { sums: vec![0.0; outline.sums.len() + 1], classes, outline }
    }

    /// Empties the sums: another rank contributes the same.
    fn clear(&mut self) {
        self.sums.fill(0.0);
        self.classes.iter_mut().for_each(ClassTally::clear);
    }

    /// Sums over the ranks.
    fn reduce(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        match &mut self.classes {
            Some(classes) => classes.sum(distributed, &mut self.sums),
            None => distributed.exchange().sum(&mut self.sums),
        }
    }

    /// Divides by the sum of weights.
    fn result(self) -> TestResult {
        let Self { outline, sums, classes } = self;
        let weight = sums[outline.sums.len()];
        // Without weights, all sums are 0.
        let weight = if weight > 0.0 { weight } else { 1.0 };
        let mut measures: Vec<(String, f64)> =
            outline.sums.iter().zip(sums).map(|(name, sum)| (name.clone(), sum / weight)).collect();
        if let Some(derived) = &outline.derived {
            // Those of a classifier are in front of the means that they follow from.
            let own = if outline.classes.is_some() { CLASS_SUMS.len() } else { 0 };
            let means: Vec<f64> = measures[own..].iter().map(|(_, mean)| *mean).collect();
            let derived = derived.names.iter().cloned().zip((derived.compute)(&means, weight));
            measures.truncate(measures.len() - outline.hidden.min(measures.len()));
            measures.extend(derived);
        }
        if let (Some(tally), Some(of)) = (&classes, &outline.classes) {
            measures.extend(tally.measures(of));
        }
        outline.lead(&mut measures);
        TestResult { measures, classes }
    }
}
