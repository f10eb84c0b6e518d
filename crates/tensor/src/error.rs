//! Errors of this crate. Each names its op, parameter or file.

use std::path::PathBuf;

use candle_core::{DType, Shape};
use phalanx_array::ArrayError;

/// The result of this crate's functions.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// The result of a callback: a [`crate::Listener`], a [`crate::ProcessGroup`], or a function of the user. An error
/// ends the pass that called it.
pub type HookResult = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// An error of recording, differentiating, storing or loading.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// An operation on arrays failed.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The shapes of an op's tensors do not match.
    #[error("{op}: {problem}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The shapes found and the shapes expected.
        problem: String,
    },
    /// A value of one tape was used on another.
    #[error("{op}: this value was recorded on another tape; use a value only on its own tape")]
    ForeignValue {
        /// The op.
        op: &'static str,
    },
    /// Backward of a value that cannot be differentiated.
    #[error("backward: {0}")]
    Backward(String),
    /// A forward pass cannot be traced.
    #[error("trace: {0}")]
    Trace(String),
    /// A parameter's values are not in memory.
    #[error("parameter `{name}` has no values in memory: {why}")]
    NotResident {
        /// The parameter.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// A bucket's state does not allow an operation.
    #[error("bucket {index} (from `{name}`) is {is}; to {operation} it must be {expected}")]
    BucketState {
        /// The bucket's position in the store.
        index: usize,
        /// Its first parameter.
        name: String,
        /// The current state.
        is: String,
        /// The operation.
        operation: &'static str,
        /// The states that allow the operation.
        expected: &'static str,
    },
    /// Two parameters or buffers were registered under one name.
    #[error("`{0}` is registered twice; names in a store are unique")]
    DuplicateName(String),
    /// A name is not in the store.
    #[error("`{name}` is not a parameter or buffer of this model{hint}")]
    UnknownName {
        /// The requested name.
        name: String,
        /// A similar name, or nothing.
        hint: String,
    },
    /// A file of weights does not fit the model.
    #[error("{path}: {problem}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// The names and shapes that do not fit.
        problem: String,
    },
    /// A file could not be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// The operation: "read", "write", …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// An argument is out of range.
    #[error("{name} is {value}; {expected}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// The allowed range.
        expected: &'static str,
    },
    /// Layers cannot be cut over ranks as a plan says.
    #[error("tensor plan: {0}")]
    TensorPlan(String),
    /// A value is not what an op needs on the ranks that compute parts of the same layers.
    #[error("{}{problem}", of_block(block))]
    Placement {
        /// The block; empty outside of blocks.
        block: String,
        /// The op, what it needs, and what the value is.
        problem: String,
    },
    /// A callback failed: a listener, or a collective operation of a process group.
    #[error("{op}: {source}")]
    Hook {
        /// The operation that called it.
        op: &'static str,
        /// The callback's error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Returns the beginning of a message about a block.
fn of_block(block: &str) -> String {
    if block.is_empty() { String::new() } else { format!("block `{block}`: ") }
}

impl TensorError {
    /// Returns an error about placements.
    pub(crate) fn placement(problem: impl Into<String>) -> Self {
        Self::Placement { block: String::new(), problem: problem.into() }
    }

    /// Names the block of an error about placements.
    pub(crate) fn in_block(self, name: &str) -> Self {
        match self {
            Self::Placement { block, problem } if block.is_empty() => {
                Self::Placement { block: name.to_owned(), problem }
            }
            other => other,
        }
    }

    /// Returns a function that wraps the error of a callback of `op`.
    pub(crate) fn hook(op: &'static str) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::Hook { op, source }
    }

    /// Returns a shape error of `op`.
    pub(crate) fn shape(op: &'static str, problem: impl Into<String>) -> Self {
        Self::Shape { op, problem: problem.into() }
    }

    /// Returns the error of an op for what it has no implementation for: a device, an element type, an option.
    pub fn unsupported(op: &'static str, what: impl Into<String>) -> Self {
        ArrayError::Unsupported { op, what: what.into() }.into()
    }

    /// Returns the error for an element type without an implementation.
    pub(crate) fn dtype(op: &'static str, dtype: DType) -> Self {
        ArrayError::dtype(op, dtype).into()
    }

    /// Returns the error for two shapes that should be equal.
    pub(crate) fn unequal(op: &'static str, left: &Shape, right: &Shape) -> Self {
        Self::shape(op, format!("shapes {left:?} and {right:?} differ; they must be equal"))
    }
}

impl From<candle_core::Error> for TensorError {
    fn from(error: candle_core::Error) -> Self {
        ArrayError::from(error).into()
    }
}

impl From<phalanx_kernels::KernelError> for TensorError {
    fn from(error: phalanx_kernels::KernelError) -> Self {
        ArrayError::from(error).into()
    }
}

#[cfg(feature = "cuda")]
impl From<phalanx_cuda::GpuError> for TensorError {
    fn from(error: phalanx_cuda::GpuError) -> Self {
        ArrayError::from(error).into()
    }
}
