//! A batch, and how one is put together.

use crate::dataset::Dataset;
use crate::error::{DataError, Result};
use crate::sampler::{DistributedSampler, Piece};
use crate::transform::Transform;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// One rank's part of one step, as plain numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The images, N·C·H·W numbers in this order.
    pub images: Vec<f32>,
    /// [N, C, H, W]. N is 0 when a ragged last batch leaves nothing for this rank.
    pub shape: [usize; 4],
    /// The N labels.
    pub labels: Vec<u32>,
    /// The N captions.
    pub captions: Vec<String>,
    /// The N indices in the dataset.
    pub indices: Vec<usize>,
    /// How many of the N, from the first, are true samples; the rest are padding.
    pub valid: usize,
    /// Its micro-batches, one after the other.
    pub pieces: Vec<Piece>,
    /// True samples in the global batch: what a mean over the batch divides by.
    pub global_valid: usize,
    /// The epoch.
    pub epoch: u64,
    /// The step in the epoch.
    pub step: usize,
}

/// What is needed to make any batch; shared by a loader's threads.
pub(crate) struct BatchMaker {
    pub(crate) dataset: Arc<dyn Dataset>,
    pub(crate) transform: Transform,
    pub(crate) sampler: DistributedSampler,
    /// Set when nobody wants batches any more; a batch in the making is then given up.
    pub(crate) stopped: AtomicBool,
}

impl BatchMaker {
    /// Makes a batch; `None` when stopped meanwhile.
    pub(crate) fn make(&self, epoch: u64, step: usize) -> Option<Result<Batch>> {
        // A panic in a dataset becomes an error at its place in the order. A thread that just
        // died would leave the consumer waiting for this batch.
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.assemble(epoch, step)));
        match made {
            Ok(Ok(batch)) => batch.map(Ok),
            Ok(Err(error)) => Some(Err(error)),
            Err(panic) => {
                let message = panic
                    .downcast_ref::<String>()
                    .cloned()
                    .or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string))
                    .unwrap_or_else(|| "no message".to_string());
                Some(Err(DataError::WorkerPanicked { epoch, step, message }))
            }
        }
    }

    fn assemble(&self, epoch: u64, step: usize) -> Result<Option<Batch>> {
        let share = self.sampler.share(epoch, step)?;
        let number = share.indices.len();
        let mut images = Vec::new();
        let mut labels = Vec::with_capacity(number);
        let mut captions = Vec::with_capacity(number);
        let mut each: Option<[usize; 3]> = None;
        for &index in &share.indices {
            if self.stopped.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let sample = self.dataset.get(index, epoch)?;
            let found = self.transform.append(sample.image, epoch, index, &mut images)?;
            let expected = *each.get_or_insert(found);
            if found != expected {
                let dataset = self.dataset.name().to_string();
                return Err(DataError::MixedSizes { dataset, index, expected, found });
            }
            if labels.is_empty() {
                // All images are as large as the first, so this is the last allocation.
                images.reserve_exact(images.len() * (number - 1));
            }
            labels.push(sample.label);
            captions.push(sample.caption);
        }
        let [channels, height, width] = each.unwrap_or_else(|| {
            let side = self.transform.output_side().unwrap_or(0) as usize;
            [3, side, side]
        });
        Ok(Some(Batch {
            images,
            shape: [number, channels, height, width],
            labels,
            captions,
            valid: share.valid,
            pieces: share.pieces,
            global_valid: share.global_valid,
            indices: share.indices,
            epoch,
            step,
        }))
    }
}
