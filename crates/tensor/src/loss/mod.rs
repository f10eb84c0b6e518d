//! Losses: stable at any input, and divided so that ranks add up to the global mean. Of inputs of 16 bits they are f32.

mod contrastive;
mod cross_entropy;
mod regression;
mod variational;
mod weighted;

pub use contrastive::clip_contrastive;
pub use cross_entropy::cross_entropy;
pub use regression::{bce_with_logits, l1, mse, smooth_l1};
pub use variational::kl_standard_normal;
pub use weighted::weighted;

/// What the sum of the samples' losses is divided by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Over {
    /// The samples of this batch: the mean.
    Batch,
    /// This many: the size of the global batch, so that gradients summed over ranks are those of the global mean
    /// even if ranks have different numbers of samples.
    Count(usize),
    /// This number: the sum of the weights of the global batch's samples, where they do not all count as 1 (see
    /// [`weighted`]). Infinity makes a loss of 0 whose gradients are 0.
    Sum(f64),
}

impl Over {
    /// What the sum is divided by in a batch of `batch` samples.
    pub fn divisor(self, batch: usize) -> f64 {
        match self {
            Self::Batch => batch.max(1) as f64,
            Self::Count(count) => count.max(1) as f64,
            // A batch in which nothing counts has a sum of 0.
            Self::Sum(sum) if sum > 0.0 => sum,
            Self::Sum(_) => 1.0,
        }
    }

    /// The factor of each sample's loss in a batch of `batch`.
    fn factor(self, batch: usize) -> f64 {
        1.0 / self.divisor(batch)
    }
}
