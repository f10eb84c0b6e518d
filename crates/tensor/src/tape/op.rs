//! Ops with their attributes and the sources of their inputs, as a traced graph records them.

use crate::backend::{
    Array, AttentionHeads, Conv2dShape, ConvTranspose2dShape, FusedActivation, Pool2dShape, UnaryOp,
    WeightLayout,
};
use crate::store::{Buffer, Param};

/// An op and its attributes: with the inputs, all that its output depends on in evaluation.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Op {
    /// [`crate::ops::conv2d`] of an image, a weight and a bias.
    Conv2d(Conv2dShape),
    /// [`crate::ops::conv_transpose2d`] of an image, a weight and a bias.
    ConvTranspose2d(ConvTranspose2dShape),
    /// [`crate::ops::batch_norm2d`] of an image, a weight, a bias and a residual.
    BatchNorm2d {
        /// The running mean, `[C]`.
        mean: Buffer,
        /// The running variance, `[C]`.
        variance: Buffer,
        /// Added to the variance.
        eps: f64,
        /// The activation after the residual was added.
        activation: FusedActivation,
    },
    /// [`crate::ops::group_norm`] of an image, a weight and a bias.
    GroupNorm {
        /// The number of groups.
        groups: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// [`crate::ops::layer_norm`] of rows, a weight and a bias.
    LayerNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// [`crate::ops::unary`].
    Unary(UnaryOp),
    /// [`crate::ops::linear_by`] of rows, a weight of this order and a bias.
    Linear(WeightLayout),
    /// [`crate::ops::matmul`].
    MatMul,
    /// [`crate::ops::softmax`].
    Softmax,
    /// [`crate::ops::attention`] of queries, keys and values.
    Attention {
        /// True if a position attends to itself and earlier ones only.
        causal: bool,
    },
    /// [`crate::ops::self_attention`] of a projection, before its heads become one dimension.
    SelfAttention {
        /// The heads.
        heads: AttentionHeads,
        /// True if a position attends to itself and earlier ones only.
        causal: bool,
    },
    /// A sum of two values, by PyTorch's rules of broadcasting.
    Add,
    /// A difference of two values.
    Sub,
    /// A product of two values, by PyTorch's rules of broadcasting.
    Mul,
    /// [`crate::ops::scale`] by a number.
    Scale(f64),
    /// [`crate::ops::add_scalar`] of a number.
    AddScalar(f64),
    /// [`crate::ops::max_pool2d`].
    MaxPool2d(Pool2dShape),
    /// [`crate::ops::avg_pool2d`].
    AvgPool2d {
        /// The window.
        shape: Pool2dShape,
        /// True if the border counts as zeros.
        count_include_pad: bool,
    },
    /// [`crate::ops::upsample_nearest2d`] by a factor.
    UpsampleNearest2d(usize),
    /// [`crate::ops::reshape`] to the shape of the output.
    Reshape,
    /// [`crate::ops::permute`] to the dimensions in this order.
    Permute(Vec<usize>),
    /// [`crate::ops::narrow`].
    Narrow {
        /// The dimension.
        dim: usize,
        /// The first index.
        start: usize,
        /// The number of indices.
        len: usize,
    },
    /// [`crate::ops::pad_with_zeros`].
    Pad {
        /// The dimension.
        dim: usize,
        /// Zeros in front.
        before: usize,
        /// Zeros behind.
        after: usize,
    },
    /// [`crate::ops::cat`] along a dimension.
    Cat(usize),
    /// [`crate::ops::sum_over`] a dimension, which is removed.
    SumOver(usize),
    /// An op whose attributes are not described, by its name.
    Named(&'static str),
}

impl Op {
    /// Returns the name, for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv2d(_) => "conv2d",
            Self::ConvTranspose2d(_) => "conv_transpose2d",
            Self::BatchNorm2d { .. } => "batch_norm2d",
            Self::GroupNorm { .. } => "group_norm",
            Self::LayerNorm { .. } => "layer_norm",
            Self::Unary(_) => "unary",
            Self::Linear(_) => "linear",
            Self::MatMul => "matmul",
            Self::Softmax => "softmax",
            Self::Attention { .. } | Self::SelfAttention { .. } => "attention",
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Scale(_) => "scale",
            Self::AddScalar(_) => "add_scalar",
            Self::MaxPool2d(_) => "max_pool2d",
            Self::AvgPool2d { .. } => "avg_pool2d",
            Self::UpsampleNearest2d(_) => "upsample_nearest2d",
            Self::Reshape => "reshape",
            Self::Permute(_) => "permute",
            Self::Narrow { .. } => "narrow",
            Self::Pad { .. } => "pad_with_zeros",
            Self::Cat(_) => "cat",
            Self::SumOver(_) => "sum_over",
            Self::Named(name) => name,
        }
    }
}

impl From<&'static str> for Op {
    fn from(name: &'static str) -> Self {
        Self::Named(name)
    }
}

/// The source of an op's input.
#[derive(Debug, Clone)]
pub enum GraphInput {
    /// An input of the graph or the output of an op, by the number of the value.
    Value(usize),
    /// A parameter.
    Param(Param),
    /// An array that the graph contains: a constant, or anything that was computed outside of the tape. An optional input
    /// that is missing has no elements.
    Constant(Array),
}
