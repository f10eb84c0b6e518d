//! Requests for generated images, and their format.

use candle_core::DType;
use phalanx_tensor::Value;

use crate::engine::error::TrainError;

/// A request for images of some prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// The prompts.
    pub prompts: Vec<String>,
    /// Images in a row.
    pub columns: usize,
    /// The meaning of a row.
    pub kind: DrawingKind,
}

/// The meaning of a row of images.
#[derive(Debug, Clone, PartialEq)]
pub enum DrawingKind {
    /// Images of one prompt, each from its own noise. A column has the same noise in each row.
    Samples,
    /// One image of each prompt, each from its own noise. Noises are numbered from `first` on, and do not depend on the other images.
    Each {
        /// The number of the first noise.
        first: u64,
    },
    /// One image of a prompt, as predicted at several steps of sampling. The last is the image.
    Strip,
    /// Images of one noise, interpolated from a prompt to the next. There is one row less than prompts.
    BetweenTexts,
    /// Images of one prompt, interpolated from one noise to another.
    BetweenNoises,
    /// Images of one prompt that start from a given image.
    From {
        /// `[3, size, size]`, planar in [-1, 1].
        image: Vec<f32>,
        /// The fraction of sampling that runs: 1 ignores the image, 0 returns it.
        strength: f64,
        /// 1 for pixels that change and 0 for those that stay, `[size, size]`; none if all change.
        mask: Option<Vec<f32>>,
    },
}

impl Drawing {
    /// Requests `columns` images of each prompt.
    pub fn samples(prompts: &[String], columns: usize) -> Self {
        Self { prompts: prompts.to_vec(), columns, kind: DrawingKind::Samples }
    }
}

/// Returns the images of [N, 3, size, size], each planar.
pub(in crate::engine) fn planar(images: &Value) -> Result<Vec<Vec<f32>>, TrainError> {
    Ok(images.array()?.to_host()?.to_dtype(DType::F32)?.flatten_from(1)?.to_vec2()?)
}
