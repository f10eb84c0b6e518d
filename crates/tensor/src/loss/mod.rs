//! Losses: stable at any input, and divided so that the sum over ranks is the global mean. For inputs of 16 bits they
//! are f32.

mod contrastive;
mod cross_entropy;
mod judged;
mod linear_cross_entropy;
mod regression;
mod variational;
mod weighted;

pub use contrastive::clip_contrastive;
pub use cross_entropy::{
    CrossEntropyOptions, LabelPairs, RowTargets, cross_entropy, cross_entropy_of_rows, mixed_cross_entropy,
};
pub use judged::{JudgedRows, judge_rows};
pub use linear_cross_entropy::linear_cross_entropy;
pub use regression::{bce_with_logits, l1, mse, smooth_l1};
pub use variational::kl_standard_normal;
pub use weighted::weighted;

/// The divisor of the sum of the samples' losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossDivisor {
    /// The number of samples of this batch: the mean.
    Batch,
    /// A number of samples: the size of the global batch. Then gradients summed over ranks are those of the global
    /// mean, even if ranks have different numbers of samples.
    Count(usize),
    /// The sum of the weights of the global batch's samples, if they are not all 1 (see [`weighted`]). Infinity makes
    /// a loss of 0 with gradients of 0.
    Sum(f64),
}

impl LossDivisor {
    /// Returns the divisor for a batch of `batch` samples.
    pub fn divisor(self, batch: usize) -> f64 {
        match self {
            Self::Batch => batch.max(1) as f64,
            Self::Count(count) => count.max(1) as f64,
            // The sum of a batch without weight is 0.
            Self::Sum(sum) if sum > 0.0 => sum,
            Self::Sum(_) => 1.0,
        }
    }

    /// Returns the factor of each sample's loss in a batch of `batch`.
    fn factor(self, batch: usize) -> f64 {
        1.0 / self.divisor(batch)
    }
}
