//! Evaluation on the test split.

use phalanx_tensor::{Session, Tape};

use crate::engine::data::{Data, TestBatch};
use crate::engine::distributed::{BatchGroups, Distributed};
use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, StepInput};

/// A pass over the test split.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct TestPass {
    /// Steps done.
    pub(in crate::engine) step: u64,
    /// Upper limit of test samples; 0 = all.
    pub(in crate::engine) limit: usize,
    /// Samples of a batch.
    pub(in crate::engine) batch: usize,
}

/// Evaluates a training on the test split. Returns means by name; nothing on servers. All ranks call this together. The session has a listener if parameters are gathered block by block.
pub(in crate::engine) fn evaluate(
    training: &dyn AnyTraining,
    data: &Data,
    distributed: &Distributed,
    groups: &BatchGroups,
    session: &Session,
    pass: TestPass,
) -> Result<Vec<(String, f64)>, TrainError> {
    let TestPass { step, limit, batch } = pass;
    let names = training.evaluated();
    // The last sum is of the samples' weights.
    let mut sums = vec![0.0; names.len() + 1];
    if distributed.is_server() {
        // The others find for each batch the ranks with samples.
        for _ in 0..data.test_steps(distributed, limit, batch)? {
            distributed.exchange().sum_of(0.0)?;
        }
        distributed.exchange().sum(&mut sums)?;
        return Ok(Vec::new());
    }
    for batch in data.test_batches(distributed, limit, batch)? {
        let TestBatch { batch, counts } = batch?;
        // Ranks with samples contrast them together.
        let has_samples = counts && !distributed.is_duplicate();
        let ranks = distributed.exchange().sum_of(f64::from(u8::from(has_samples)))? as usize;
        let batch_group = groups.first(ranks.max(1))?.filter(|_| counts);
        if !counts && session.listener.is_none() {
            continue;
        }
        let tape = Tape::forward_only(Session { batch_group, ..session.clone() });
        let measured = training.evaluate(&StepInput::new(&tape, &batch, 1.0, step, session.key))?;
        if !counts {
            // This rank only took part in gathering parameters.
            continue;
        }
        for (sum, value) in sums.iter_mut().zip(measured) {
            *sum += value;
        }
        sums[names.len()] += batch.weight();
    }
    if distributed.is_duplicate() {
        // Another rank contributes the same sums.
        sums.fill(0.0);
    }
    distributed.exchange().sum(&mut sums)?;
    let weight = sums[names.len()];
    // Without weights, all sums are 0.
    let weight = if weight > 0.0 { weight } else { 1.0 };
    Ok(names.iter().zip(sums).map(|(name, sum)| (name.clone(), sum / weight)).collect())
}
