//! Measuring on the test split.

use candle_core::Tensor;
use phalanx_tensor::{Session, Tape};

use crate::engine::data::{Batch, Data};
use crate::engine::distributed::Distributed;
use crate::engine::error::TrainError;
use crate::engine::tasks::Task;

/// An image that nobody asks for: what a rank without any computes, so that it takes part in gathering each block's
/// parameters.
fn blank(like: &Batch) -> Result<Batch, TrainError> {
    let (_, channels, height, width) = like.images.dims4()?;
    let images = Tensor::zeros((1, channels, height, width), like.images.dtype(), like.images.device())?;
    Ok(Batch { images, labels: vec![0], captions: vec![String::new()] })
}

/// Evaluates `task` on at most `limit` test images (0 = all) in batches of `batch`.
pub(in crate::engine) fn evaluate(
    task: &dyn Task,
    data: &Data,
    distributed: &Distributed,
    session: &Session,
    limit: usize,
    batch: usize,
) -> Result<Vec<(String, f64)>, TrainError> {
    let names = task.evaluated();
    // The last sum counts the images.
    let mut sums = vec![0.0; names.len() + 1];
    for batch in data.test_batches(distributed, limit, batch)? {
        let batch = batch?;
        // Those who have images of it contrast them together.
        let ranks = distributed.sum_of(f64::from(u8::from(!batch.is_empty())))? as usize;
        let batch_group = distributed.batch_group(ranks.max(1))?.filter(|_| !batch.is_empty());
        let listener = distributed.listener();
        if batch.is_empty() && listener.is_none() {
            continue;
        }
        let tape = Tape::forward_only(Session { listener, batch_group, ..session.clone() });
        if batch.is_empty() {
            task.evaluate(&tape, &blank(&batch)?)?;
            continue;
        }
        for (sum, value) in sums.iter_mut().zip(task.evaluate(&tape, &batch)?) {
            *sum += value;
        }
        sums[names.len()] += batch.len() as f64;
    }
    distributed.sum(&mut sums)?;
    let images = sums[names.len()].max(1.0);
    Ok(names.iter().zip(sums).map(|(name, sum)| ((*name).to_owned(), sum / images)).collect())
}
