//! ONNX models out of traced forward passes.
//!
//! [`OnnxModel::trace`] takes two graphs of the same forward pass, for batches of two and of three samples, which
//! [`Tape::tracing`](phalanx_tensor::Tape::tracing) records. Each [`Op`](phalanx_tensor::Op) with its attributes becomes one or
//! more nodes of ONNX's standard operators, opset 17. Parameters keep their names and become initializers. Sizes that follow the
//! batch are open: the dimension `batch`.
//!
//! The exporter reads ops, not models, so it works for models of users. It refuses by name an op without an ONNX form, an
//! array that was computed outside of the tape (its values differ between both passes), and a shape that an open batch cannot
//! express.
//!
//! The fields are those of [`onnx.proto`](https://github.com/onnx/onnx/blob/main/onnx/onnx.proto), the operators those of
//! [ONNX's operator schemas](https://onnx.ai/onnx/operators/).
#![forbid(unsafe_code)]

mod error;

mod dims;
mod node;

mod lower;

mod encode;

mod model;

pub use error::{OnnxError, Result};
pub use model::{OnnxModel, OnnxNames};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
