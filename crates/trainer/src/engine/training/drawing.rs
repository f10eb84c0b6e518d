//! What pictures a training is asked to draw, and pictures as it gives them.

use candle_core::DType;
use phalanx_tensor::Value;

use crate::engine::error::TrainError;

/// What to draw for some prompts.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// What the pictures are to show.
    pub prompts: Vec<String>,
    /// Pictures of a row.
    pub columns: usize,
    /// What a row is.
    pub kind: DrawingKind,
}

/// What a row of a drawing is.
#[derive(Debug, Clone, PartialEq)]
pub enum DrawingKind {
    /// Pictures of one prompt, each from its own noise; a column has the same in every row.
    Samples,
    /// One picture of each prompt, each from a noise of its own: they are numbered from `first` on, and a number's
    /// noise is the same whatever else is drawn.
    Each {
        /// The number of the first prompt's noise.
        first: u64,
    },
    /// One picture of a prompt on its way from noise: what is predicted of it at so many steps, the last of them the
    /// picture.
    Strip,
    /// Pictures from one noise, from a prompt to the next one: a row less than there are prompts.
    BetweenTexts,
    /// Pictures of one prompt, from one noise to another.
    BetweenNoises,
    /// Pictures of one prompt that begin from a given picture.
    From {
        /// `[3, size, size]`, planar in [-1, 1].
        image: Vec<f32>,
        /// How much of the way from noise is gone: 1 all of it, which leaves nothing of the image, 0 nothing.
        strength: f64,
        /// 1 for what is drawn and 0 for what stays as it is, for every pixel `[size, size]`; nothing for all.
        mask: Option<Vec<f32>>,
    },
}

impl Drawing {
    /// So many pictures of each prompt.
    pub fn samples(prompts: &[String], columns: usize) -> Self {
        Self { prompts: prompts.to_vec(), columns, kind: DrawingKind::Samples }
    }
}

/// The pictures of [N, 3, size, size], each planar.
pub(in crate::engine) fn planar(images: &Value) -> Result<Vec<Vec<f32>>, TrainError> {
    Ok(images.array()?.to_host()?.to_dtype(DType::F32)?.flatten_from(1)?.to_vec2()?)
}
