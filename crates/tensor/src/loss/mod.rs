//! Losses: stable at any input, and divided so that ranks add up to the global mean. Of inputs of 16 bits they are f32.

mod contrastive;
mod cross_entropy;
mod regression;
mod variational;

pub use contrastive::clip_contrastive;
pub use cross_entropy::cross_entropy;
pub use regression::{bce_with_logits, l1, mse, smooth_l1};
pub use variational::kl_standard_normal;

/// What the sum of the samples' losses is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// The samples of this batch: the mean.
    Batch,
    /// This many: the size of the global batch, so that gradients summed over ranks are those of the global mean
    /// even if ranks have different numbers of samples.
    Count(usize),
}

impl Over {
    /// The factor of each sample's loss in a batch of `batch`.
    fn factor(self, batch: usize) -> f64 {
        let count = match self {
            Self::Batch => batch,
            Self::Count(count) => count,
        };
        1.0 / count.max(1) as f64
    }
}
