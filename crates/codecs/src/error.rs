//! Errors of codecs.

use phalanx_collectives::CommError;
use phalanx_tensor::{ArrayError, TensorError};

/// The result of a codec's functions.
pub type Result<T, E = CodecError> = std::result::Result<T, E>;

/// An error of a codec.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Communication failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] phalanx_kernels::KernelError),
    /// A tensor operation failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// Settings, messages or state that do not fit the codec.
    #[error("codec `{codec}` {problem}")]
    Codec {
        /// The codec's name.
        codec: String,
        /// The problem, as the rest of the sentence.
        problem: String,
    },
    /// Values of one sum that lie partly on the host and partly on a device.
    #[error("a codec was given values on the host together with values on a device")]
    MixedMemory,
}

impl CodecError {
    /// The error of a codec, with the problem as the rest of the sentence.
    pub fn codec(codec: &str, problem: impl Into<String>) -> Self {
        Self::Codec { codec: codec.to_owned(), problem: problem.into() }
    }
}

impl From<ArrayError> for CodecError {
    fn from(error: ArrayError) -> Self {
        Self::Tensor(error.into())
    }
}
