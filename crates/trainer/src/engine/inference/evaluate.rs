//! Measuring on the test split.

use candle_core::Tensor;
use phalanx_tensor::loss::Over;
use phalanx_tensor::{Session, Tape};

use crate::engine::data::{Batch, Data};
use crate::engine::distributed::Distributed;
use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Step};

/// An image that nobody asks for: what a rank without any computes, so that it takes part in gathering each block's
/// parameters.
fn blank(like: &Batch) -> Result<Batch, TrainError> {
    let (_, channels, height, width) = like.images.dims4()?;
    let images = Tensor::zeros((1, channels, height, width), like.images.dtype(), like.images.device())?;
    Ok(Batch { images, labels: vec![0], captions: vec![String::new()] })
}

/// Evaluates after `step` steps on at most `limit` test images (0 = all) in batches of `batch`. The session listens where
/// parameters are gathered block by block.
pub(in crate::engine) fn evaluate(
    training: &dyn AnyTraining,
    data: &Data,
    distributed: &Distributed,
    session: &Session,
    limit: usize,
    batch: usize,
    step: u64,
) -> Result<Vec<(String, f64)>, TrainError> {
    let names = training.evaluated();
    // The last sum counts the images.
    let mut sums = vec![0.0; names.len() + 1];
    for batch in data.test_batches(distributed, limit, batch)? {
        let batch = batch?;
        if batch.is_empty() && session.listener.is_none() {
            continue;
        }
        let tape = Tape::forward_only(session.clone());
        if batch.is_empty() {
            training.evaluate(&Step::new(&tape, &blank(&batch)?, Over::Count(1), step))?;
            continue;
        }
        for (sum, value) in
            sums.iter_mut().zip(training.evaluate(&Step::new(&tape, &batch, Over::Count(1), step))?)
        {
            *sum += value;
        }
        sums[names.len()] += batch.len() as f64;
    }
    distributed.sum(&mut sums)?;
    let images = sums[names.len()].max(1.0);
    Ok(names.iter().zip(sums).map(|(name, sum)| (name.clone(), sum / images)).collect())
}
