//! The errors of this crate.

use phalanx_codecs::CodecError;
use phalanx_collectives::CommError;
use phalanx_tensor::{ArrayError, TensorError};

/// The result of this crate's functions.
pub type Result<T, E = ShardingError> = std::result::Result<T, E>;

/// An error from distributing a model.
#[derive(Debug, thiserror::Error)]
pub enum ShardingError {
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
    /// Ranks cannot be arranged as asked.
    #[error("mesh: {0}")]
    Mesh(String),
    /// Unknown value of the option `overlap`.
    #[error("overlap `{name}` is unknown; there is: auto, always, never")]
    Overlap {
        /// The name asked for.
        name: String,
    },
    /// There is no such strategy, or it is not built yet.
    #[error("strategy `{name}` {problem}")]
    Strategy {
        /// The name asked for.
        name: String,
        /// The problem, and the alternatives.
        problem: String,
    },
    /// A codec refused its settings, gradients or state.
    #[error(transparent)]
    Codec(CodecError),
    /// State of a strategy in a checkpoint that cannot be resumed.
    #[error("state of strategy `{strategy}`: {problem}")]
    State {
        /// The strategy.
        strategy: String,
        /// The problem and the expectation.
        problem: String,
    },
    /// A step cannot begin, or gradients came outside of any.
    #[error("step: {0}")]
    Step(&'static str),
    /// A rank would have no logical rank to compute.
    #[error(
        "{shards} logical ranks cannot lie on {ranks} ranks; there can be at most as many ranks as logical ones, and one at least"
    )]
    VirtualRanks {
        /// The number of virtual ranks.
        shards: usize,
        /// The number of ranks.
        ranks: usize,
    },
    /// A schedule of a pipeline cannot run.
    #[error("pipeline schedule {0}")]
    Schedule(String),
    /// A model cannot be divided into stages, or ranks of a pipeline do not fit together.
    #[error("pipeline: {0}")]
    Pipeline(String),
    /// Two ranks built different models.
    #[error("rank {rank} built another model than rank 0: {difference}")]
    ModelsDiffer {
        /// The rank that differs.
        rank: usize,
        /// The first difference.
        difference: String,
    },
}

impl ShardingError {
    pub(crate) fn state(strategy: &str, problem: impl Into<String>) -> Self {
        Self::State { strategy: strategy.to_owned(), problem: problem.into() }
    }

    pub(crate) fn strategy(name: &str, problem: impl Into<String>) -> Self {
        Self::Strategy { name: name.to_owned(), problem: problem.into() }
    }

    pub(crate) fn codec(codec: &str, problem: impl Into<String>) -> Self {
        Self::Codec(CodecError::codec(codec, problem))
    }
}

impl From<CodecError> for ShardingError {
    /// Keeps the layer of an error: a failed communication stays [`ShardingError::Comm`].
    fn from(error: CodecError) -> Self {
        match error {
            CodecError::Comm(error) => Self::Comm(error),
            CodecError::Kernel(error) => Self::Kernel(error),
            CodecError::Tensor(error) => Self::Tensor(error),
            CodecError::Candle(error) => Self::Candle(error),
            error @ (CodecError::Codec { .. } | CodecError::MixedMemory) => Self::Codec(error),
        }
    }
}

impl From<ArrayError> for ShardingError {
    fn from(error: ArrayError) -> Self {
        Self::Tensor(error.into())
    }
}
