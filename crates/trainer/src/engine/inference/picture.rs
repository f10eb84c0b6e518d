//! Pictures of prepared images.

use candle_core::DType;
use phalanx_data::transform::Normalise;

use crate::engine::TrainError;
use crate::engine::training::ForwardInput;
use phalanx_batches::Batch;

/// A picture as a network sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct Picture {
    /// Height and width.
    pub size: usize,
    /// `[3, size, size]`, planar in [-1, 1].
    pub pixels: Vec<f32>,
}

impl Picture {
    /// Makes the picture of a sample of a batch, whose images are normalised.
    pub(super) fn of_batch(
        batch: &Batch,
        row: usize,
        size: usize,
        normalise: Normalise,
    ) -> Result<Self, TrainError> {
        let images = batch.tensor(ForwardInput::IMAGES)?;
        let mut pixels: Vec<f32> = images.get(row)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
        for (channel, plane) in pixels.chunks_exact_mut(size * size).enumerate() {
            let (mean, std) = (normalise.mean[channel], normalise.std[channel]);
            plane.iter_mut().for_each(|value| *value = 2.0 * (*value * std + mean) - 1.0);
        }
        Ok(Self { size, pixels })
    }
}
