//! The errors of this crate.

use phalanx_codecs::CodecError;
use phalanx_collectives::CommError;
use phalanx_tensor::TensorError;

/// What this crate's functions return.
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
    /// No such way for communication to run beside computing.
    #[error("overlap `{name}` is unknown; there is: auto, always, never")]
    Overlap {
        /// The name asked for.
        name: String,
    },
    /// A tensor does not lie along the axes of a mesh as somebody takes it to.
    #[error("placement of a tensor of shape {shape:?}: {problem}")]
    Placement {
        /// The whole tensor's shape.
        shape: Vec<usize>,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// There is no such strategy, or it is not built yet.
    #[error("strategy `{name}` {problem}")]
    Strategy {
        /// The name asked for.
        name: String,
        /// What is wrong, and what there is.
        problem: String,
    },
    /// A codec refused its settings, gradients or state.
    #[error(transparent)]
    Codec(CodecError),
    /// What a checkpoint has of a strategy's state cannot be gone on with.
    #[error("state of strategy `{strategy}`: {problem}")]
    State {
        /// The strategy.
        strategy: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// A step cannot begin, or gradients came outside of any.
    #[error("step: {0}")]
    Step(&'static str),
    /// A rank would have no logical rank to compute.
    #[error(
        "{shards} logical ranks cannot lie on {ranks} ranks; there can be at most as many ranks as logical ones, and one at least"
    )]
    LogicalRanks {
        /// How many logical ranks there are.
        shards: usize,
        /// How many ranks.
        ranks: usize,
    },
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
    /// Keeps the layer that an error comes from: a failed communication is [`ShardingError::Comm`], whoever ran it.
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
