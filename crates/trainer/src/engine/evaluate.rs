//! Measuring on the test split.

use candle_core::Tensor;
use phalanx_tensor::{Session, Tape};

use super::data::Data;
use super::peers::Peers;
use super::train::Run;
use super::{Batch, Task, TrainError, precision};

/// Evaluates the averaged weights, or the weights, on the test split, each rank its share.
pub(super) fn run(run: &mut Run<'_>) -> Result<Vec<(String, f64)>, TrainError> {
    let eval = &run.config.eval;
    let share = run.config.train.global_batch.div_ceil(run.peers.size());
    let batch = if eval.batch > 0 { eval.batch } else { share };
    run.peers.broadcast_buffers(run.learner.task.store())?;
    let (data, peers, context) = (&run.data, run.peers, run.context.clone());
    let session = Session { precision: precision::precision(run.config), ..Session::evaluation(context) };
    run.learner.with_averages_by_block(peers, |task| evaluate(task, data, peers, &session, eval.limit, batch))
}

/// An image that nobody asks for: what a rank without any computes, so that it takes part in gathering each block's
/// parameters.
fn blank(like: &Batch) -> Result<Batch, TrainError> {
    let (_, channels, height, width) = like.images.dims4()?;
    let images = Tensor::zeros((1, channels, height, width), like.images.dtype(), like.images.device())?;
    Ok(Batch { images, labels: vec![0], captions: vec![String::new()] })
}

/// Evaluates `task` on at most `limit` test images (0 = all) in batches of `batch`.
pub(super) fn evaluate(
    task: &dyn Task,
    data: &Data,
    peers: &Peers,
    session: &Session,
    limit: usize,
    batch: usize,
) -> Result<Vec<(String, f64)>, TrainError> {
    let names = task.evaluated();
    // The last sum counts the images.
    let mut sums = vec![0.0; names.len() + 1];
    for batch in data.test_batches(peers, limit, batch)? {
        let batch = batch?;
        // Those who have images of it contrast them together.
        let ranks = peers.sum_of(f64::from(u8::from(!batch.is_empty())))? as usize;
        let batch_group = peers.batch_group(ranks.max(1))?.filter(|_| !batch.is_empty());
        let listener = peers.listener();
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
    peers.sum(&mut sums)?;
    let images = sums[names.len()].max(1.0);
    Ok(names.iter().zip(sums).map(|(name, sum)| ((*name).to_owned(), sum / images)).collect())
}
