//! Measuring on the test split.

use phalanx_tensor::{Session, Tape};

use crate::engine::data::{Data, TestBatch};
use crate::engine::distributed::{BatchGroups, Distributed};
use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Step};

/// Evaluates after `step` steps on at most `limit` test samples (0 = all) in batches of `batch`. The session listens where
/// parameters are gathered block by block.
pub(in crate::engine) fn evaluate(
    training: &dyn AnyTraining,
    data: &Data,
    distributed: &Distributed,
    groups: &BatchGroups,
    session: &Session,
    limit: usize,
    batch: usize,
    step: u64,
) -> Result<Vec<(String, f64)>, TrainError> {
    let names = training.evaluated();
    // The last sum is that of the samples' weights.
    let mut sums = vec![0.0; names.len() + 1];
    if distributed.is_server() {
        // The others ask for each batch who has samples of it.
        for _ in 0..data.test_steps(distributed, limit, batch)? {
            distributed.sum_of(0.0)?;
        }
        distributed.sum(&mut sums)?;
        return Ok(Vec::new());
    }
    for batch in data.test_batches(distributed, limit, batch)? {
        let TestBatch { batch, counts } = batch?;
        // Those who have samples of it contrast them together.
        let ranks = distributed.sum_of(f64::from(u8::from(counts)))? as usize;
        let batch_group = groups.first(ranks.max(1))?.filter(|_| counts);
        if !counts && session.listener.is_none() {
            continue;
        }
        let tape = Tape::forward_only(Session { batch_group, ..session.clone() });
        let measured = training.evaluate(&Step::new(&tape, &batch, 1.0, step, session.key))?;
        if !counts {
            // Computed so that this rank takes part in gathering each block's parameters.
            continue;
        }
        for (sum, value) in sums.iter_mut().zip(measured) {
            *sum += value;
        }
        sums[names.len()] += batch.weight();
    }
    distributed.sum(&mut sums)?;
    let weight = sums[names.len()];
    // Where nothing counts, all sums are 0.
    let weight = if weight > 0.0 { weight } else { 1.0 };
    Ok(names.iter().zip(sums).map(|(name, sum)| (name.clone(), sum / weight)).collect())
}
