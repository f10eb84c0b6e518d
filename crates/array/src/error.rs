//! Errors of arrays. Each names its operation.

use candle_core::{DType, Shape};

/// The result of this crate's functions.
pub type Result<T, E = ArrayError> = std::result::Result<T, E>;

/// An error of an operation on arrays.
#[derive(Debug, thiserror::Error)]
pub enum ArrayError {
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A kernel rejected its arguments.
    #[error(transparent)]
    Kernel(#[from] phalanx_kernels::KernelError),
    /// An error of a GPU or of one of its libraries.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Gpu(#[from] phalanx_cuda::GpuError),
    /// The shapes of an operation's arrays do not match.
    #[error("{op}: {problem}")]
    Shape {
        /// The operation.
        op: &'static str,
        /// The shapes found and the shapes expected.
        problem: String,
    },
    /// An operation has no implementation for this device or element type.
    #[error("{op} is not supported for {what}")]
    Unsupported {
        /// The operation.
        op: &'static str,
        /// The device or element type.
        what: String,
    },
    /// An operation of the host was given an array on a device.
    #[error("{op} needs an array on the host, and this one is on {backend}; copy it with `to_host`")]
    NotOnHost {
        /// The operation of the host.
        op: &'static str,
        /// The back end of the array.
        backend: &'static str,
    },
    /// A back end was given an array of another back end.
    #[error("{op} on {expected} got an array on {found}; copy it with `from_host` or `to_host`")]
    OtherBackend {
        /// The function of the back end.
        op: &'static str,
        /// The back end that was called.
        expected: &'static str,
        /// The back end of the array.
        found: &'static str,
    },
    /// Numbers of an array without numbers were read.
    #[error("{op}: an outline has shapes and types, and no numbers to read")]
    NoNumbers {
        /// The operation.
        op: &'static str,
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
}

impl ArrayError {
    /// Returns a shape error of `op`.
    pub fn shape(op: &'static str, problem: impl Into<String>) -> Self {
        Self::Shape { op, problem: problem.into() }
    }

    /// Returns the error for an element type without an implementation.
    pub fn dtype(op: &'static str, dtype: DType) -> Self {
        Self::Unsupported { op, what: format!("element type {}", dtype.as_str()) }
    }

    /// Returns the error for two shapes that should be equal.
    pub fn unequal(op: &'static str, left: &Shape, right: &Shape) -> Self {
        Self::shape(op, format!("shapes {left:?} and {right:?} differ; they must be equal"))
    }
}
