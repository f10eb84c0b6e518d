//! Errors of this crate. Each names the op.

use candle_core::DType;
use phalanx_tensor::{ArrayError, TensorError};

/// The reason why a model has no ONNX form.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// The forward pass failed.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// An error of candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// An op has no ONNX form.
    #[error("the op `{0}` has no ONNX form here; models with it cannot be exported to ONNX")]
    Unsupported(&'static str),
    /// An array in the graph depends on the input.
    #[error(
        "an input of the op `{0}` was computed outside of the tape, so the model cannot be exported to ONNX"
    )]
    OutsideTape(&'static str),
    /// An attribute or a shape depends on the batch in a way that an open batch cannot express.
    #[error(
        "the op `{op}` depends on the number of samples: {problem}; the model cannot be exported to ONNX"
    )]
    DependsOnBatch {
        /// The op.
        op: &'static str,
        /// The attribute or the sizes.
        problem: String,
    },
    /// The ops differ between passes of different batches.
    #[error("a batch of 2 samples runs {0} ops and one of 3 runs {1}; the model cannot be exported to ONNX")]
    OtherOps(usize, usize),
    /// A constant has an element type other than f32.
    #[error("an input of the op `{op}` has element type {}, and constants of ONNX models are f32 here", dtype.as_str())]
    ElementType {
        /// The op.
        op: &'static str,
        /// The element type.
        dtype: DType,
    },
    /// The number of names and of values differs.
    #[error("{names} names for {values} {kind} of the graph")]
    Names {
        /// `inputs` or `outputs`.
        kind: &'static str,
        /// The number of names.
        names: usize,
        /// The number of values.
        values: usize,
    },
    /// The weights are larger than a file of Protocol Buffers.
    #[error("the weights have {0} bytes; an ONNX file of one piece has less than 2 GiB")]
    TooLarge(u64),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, OnnxError>;

impl From<ArrayError> for OnnxError {
    fn from(error: ArrayError) -> Self {
        Self::Tensor(error.into())
    }
}
