//! The errors of this crate: each names the op, parameter or file that it concerns.

use std::path::PathBuf;

use candle_core::{DType, Shape};

/// What this crate's functions return.
pub type Result<T, E = TensorError> = std::result::Result<T, E>;

/// What somebody returns who is called from the tape, a listener or a group of ranks; the error ends the pass that called.
pub type HookResult = std::result::Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// An error from recording, differentiating, storing or loading.
#[derive(Debug, thiserror::Error)]
pub enum TensorError {
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A kernel refused its arguments.
    #[error(transparent)]
    Kernel(#[from] phalanx_kernels::KernelError),
    /// A GPU, or a library that it needs, reported an error.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] phalanx_cuda::GpuError),
    /// An op was given tensors whose shapes do not go together.
    #[error("{op}: {problem}")]
    Shape {
        /// The op that refused.
        op: &'static str,
        /// What was found and what would be right.
        problem: String,
    },
    /// An op has no implementation for this device or element type.
    #[error("{op} is not supported for {what}")]
    Unsupported {
        /// The op that refused.
        op: &'static str,
        /// The device or element type.
        what: String,
    },
    /// The host was to read an array that lies on a device.
    #[error("{op} reads numbers on the host, and this array is one of {backend}; `to_host` copies it")]
    NotOnHost {
        /// Who was to read.
        op: &'static str,
        /// The back end that has the array.
        backend: &'static str,
    },
    /// A back end was given an array of another one.
    #[error("{op} of {expected} was given an array of {found}; `from_host` and `to_host` copy between them")]
    OtherBackend {
        /// The function of the back end.
        op: &'static str,
        /// The back end that was to compute.
        expected: &'static str,
        /// The back end that has the array.
        found: &'static str,
    },
    /// A value of one tape was used on another.
    #[error("{op}: a value recorded on another tape was used here; a value belongs to the tape that made it")]
    ForeignValue {
        /// The op that received the value.
        op: &'static str,
    },
    /// Backward was asked for something that cannot be differentiated.
    #[error("backward: {0}")]
    Backward(String),
    /// A parameter's values are not in memory.
    #[error("parameter `{name}` has no values in memory: {why}")]
    NotResident {
        /// The parameter.
        name: String,
        /// Why not.
        why: &'static str,
    },
    /// A flat parameter was asked for something that its state does not allow.
    #[error("flat parameter {index} (from `{name}`) is {is}; to {operation} it must be {expected}")]
    FlatState {
        /// Its position in the store.
        index: usize,
        /// Its first parameter.
        name: String,
        /// The state that it is in.
        is: String,
        /// What was to be done.
        operation: &'static str,
        /// The states in which that can be done.
        expected: &'static str,
    },
    /// Two parameters or buffers were registered under one name.
    #[error("`{0}` was registered twice; names in a store are unique")]
    DuplicateName(String),
    /// A name is not in the store.
    #[error("`{name}` is not a parameter or buffer of this model{hint}")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// A nearby name, or nothing.
        hint: String,
    },
    /// A file of weights does not fit the model.
    #[error("{path}: {problem}")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What does not fit, with names and shapes.
        problem: String,
    },
    /// A file could not be read or written.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was being done: "read", "write", …
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A number is out of its allowed range.
    #[error("{name} is {value}; {expected}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// Somebody who was called from the tape (a listener, or the exchange of statistics) failed.
    #[error("{op}: {source}")]
    Hook {
        /// What was being done.
        op: &'static str,
        /// Its error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl TensorError {
    /// Makes the error of somebody who was called from the tape this crate's: what was being done is `op`.
    pub(crate) fn hook(op: &'static str) -> impl FnOnce(Box<dyn std::error::Error + Send + Sync>) -> Self {
        move |source| Self::Hook { op, source }
    }

    /// A shape error of `op`.
    pub(crate) fn shape(op: &'static str, problem: impl Into<String>) -> Self {
        Self::Shape { op, problem: problem.into() }
    }

    /// The error for an element type without an implementation.
    pub(crate) fn dtype(op: &'static str, dtype: DType) -> Self {
        Self::Unsupported { op, what: format!("element type {}", dtype.as_str()) }
    }

    /// The error for two shapes that should have been equal.
    pub(crate) fn unequal(op: &'static str, left: &Shape, right: &Shape) -> Self {
        Self::shape(op, format!("shapes {left:?} and {right:?} differ; they must be equal"))
    }
}
