//! Nodes and constants of an ONNX graph.

use candle_core::DType;
use phalanx_tensor::Array;

use crate::error::{OnnxError, Result};

/// A node: one operator of the standard domain with one output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// The operator, such as `Conv`.
    pub(crate) operator: &'static str,
    /// The names of its inputs; empty for a missing optional one.
    pub(crate) inputs: Vec<String>,
    /// The name of its output, which is also the node's name.
    pub(crate) output: String,
    /// The attributes.
    pub(crate) attributes: Vec<(&'static str, Attribute)>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Attribute {
    Int(i64),
    Ints(Vec<i64>),
    Float(f32),
    Text(&'static str),
}

impl Attribute {
    /// An attribute of sizes.
    pub(crate) fn sizes(sizes: &[usize]) -> Self {
        Self::Ints(sizes.iter().map(|size| *size as i64).collect())
    }

    /// The attribute `pads` of equal padding at both ends of height and width.
    pub(crate) fn pads([height, width]: [usize; 2]) -> Self {
        Self::sizes(&[height, width, height, width])
    }

    /// An attribute that is 1 or 0.
    pub(crate) fn flag(on: bool) -> Self {
        Self::Int(i64::from(on))
    }
}

/// A constant of the graph: an initializer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Constant {
    pub(crate) name: String,
    pub(crate) dims: Vec<usize>,
    pub(crate) values: Values,
}

/// The elements of a constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    F32(Vec<f32>),
    I64(Vec<i64>),
}

impl Values {
    /// Copies the elements of an array of `op`.
    ///
    /// # Errors
    /// [`OnnxError::ElementType`] if they are not f32.
    pub(crate) fn of(op: &'static str, array: &Array) -> Result<Self> {
        let host = array.to_host()?;
        match host.dtype() {
            DType::F32 => Ok(Self::F32(host.flatten_all()?.to_vec1()?)),
            dtype => Err(OnnxError::ElementType { op, dtype }),
        }
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::F32(values) => 4 * values.len(),
            Self::I64(values) => 8 * values.len(),
        }
    }
}
