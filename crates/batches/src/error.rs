//! Errors of batches.

use phalanx_data::DataError;
use phalanx_tensor::ArrayError;

/// The reason why a batch cannot be made or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// A loss takes samples of equal weight.
    #[error("this loss takes samples of equal weight, but a batch has weights of {first} and {other}")]
    UnequalWeights {
        /// The weight of the first sample.
        first: f32,
        /// Another weight.
        other: f32,
    },
    /// Images are of another size than the cached ones.
    #[error(
        "images of {} × {} pixels come for a set of {} × {}",
        found[0], found[1], cached[0], cached[1]
    )]
    ImageSize {
        /// Height and width of the images.
        found: [usize; 2],
        /// Height and width of the cached ones.
        cached: [usize; 2],
    },
    /// Images are in a cache that is not here.
    #[error("images come without the cached ones of their set, and this rank has no cache")]
    NoCache,
    /// A batch has fewer samples.
    #[error("a batch of {samples} samples has no first {wanted}")]
    TooFew {
        /// The number of samples that are needed.
        wanted: usize,
        /// The number of samples.
        samples: usize,
    },
    /// There is no such array.
    #[error(transparent)]
    Data(#[from] DataError),
    /// An array cannot be computed.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}
