//! Scaled dot-product attention (Vaswani et al. 2017).

use candle_core::Shape;

use super::{Array, Dropout};
use crate::{Precision, Result};

/// The sizes of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Samples.
    pub batch: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values. Each serves `heads / key_heads` successive heads of queries.
    pub key_heads: usize,
    /// Query positions.
    pub length: usize,
    /// Key and value positions.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl AttentionShape {
    /// Returns the shape of queries and of the output, [N, T, heads, D].
    pub fn queries(&self) -> Shape {
        Shape::from((self.batch, self.length, self.heads, self.dim))
    }

    /// Returns the shape of keys and of values, [N, S, key_heads, D].
    pub fn positions(&self) -> Shape {
        Shape::from((self.batch, self.keys, self.key_heads, self.dim))
    }

    /// Returns the shape of queries, keys and values in one array, [N, T, (heads + 2·key_heads)·D].
    pub fn joined(&self) -> Shape {
        Shape::from((self.batch, self.length, (self.heads + 2 * self.key_heads) * self.dim))
    }
}

/// The numbers of heads of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionHeads {
    /// Heads of queries.
    pub queries: usize,
    /// Heads of keys and values, each for `queries / keys` successive heads of queries (Ainslie et al. 2023).
    pub keys: usize,
}

impl From<usize> for AttentionHeads {
    /// Gives each head of queries a head of keys of its own.
    fn from(heads: usize) -> Self {
        Self { queries: heads, keys: heads }
    }
}

/// The keys that each query sees: those that all of these allow. By default all.
#[derive(Debug, Clone, Default)]
pub struct AttentionMask {
    /// True if a query sees no later keys. The last query is at the position of the last key.
    pub causal: bool,
    /// The number of keys up to its own that a query sees. Needs `causal`.
    pub window: Option<usize>,
    /// The number of keys of each sample, u32 `[N]`. Those behind are padding.
    pub lengths: Option<Array>,
    /// The first key of each query's document, u32 [N, T].
    pub starts: Option<Array>,
}

impl AttentionMask {
    /// Returns the pairs of a query and a key that it sees in a sample of these lengths, without padding and documents.
    pub fn pairs(&self, queries: usize, keys: usize) -> usize {
        if !self.causal {
            return queries * keys;
        }
        let window = self.window.unwrap_or(keys);
        // The last query is at the position of the last key.
        (0..queries).map(|query| (keys + query + 1).saturating_sub(queries).min(window)).sum()
    }
}

/// Queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub enum AttentionOperands<'a> {
    /// One array [N, T, (heads + 2·key_heads)·D]: queries, then keys, then values of a position.
    Joined(&'a Array),
    /// Queries [N, T, heads, D], keys and values [N, S, key_heads, D].
    Apart([&'a Array; 3]),
}

/// The inputs of attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// The sizes.
    pub shape: AttentionShape,
    /// The keys that each query sees.
    pub mask: &'a AttentionMask,
    /// The dropout of weights, by head, query and key of a sample.
    pub dropout: Option<Dropout>,
    /// Queries, keys and values.
    pub operands: AttentionOperands<'a>,
    /// The precision of the products.
    pub precision: Precision,
}

/// The result of attention.
#[derive(Debug)]
pub struct AttentionOutput {
    /// softmax(q·kᵀ/√D)·v [N, T, heads, D], of the type in which the precision stores products.
    pub output: Array,
    /// The input of backward besides operands and output. On the CPU: ln Σ e^score of every query, [N, heads, T], in the
    /// type of the arithmetic.
    pub saved: Array,
}

/// The inputs of the backward of attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionBackward<'a> {
    /// The inputs of the forward pass.
    pub inputs: AttentionInputs<'a>,
    /// [`AttentionOutput::output`].
    pub output: &'a Array,
    /// [`AttentionOutput::saved`].
    pub saved: &'a Array,
    /// The output's gradient.
    pub grad: &'a Array,
    /// The requested gradients of operands apart: of q, k and v.
    pub wants: [bool; 3],
}

/// The gradients of attention.
#[derive(Debug)]
pub enum AttentionGradients {
    /// The gradient of [`AttentionOperands::Joined`].
    Joined(Array),
    /// The requested gradients of [`AttentionOperands::Apart`].
    Apart([Option<Array>; 3]),
}

/// Attention on a back end. Operands are rounded to the type that the precision multiplies. The softmax is in f32 for
/// operands of 16 bits. A query that sees no key gets 0.
pub trait Attention {
    /// Computes softmax(q·kᵀ/√D)·v.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput>;

    /// Returns the requested gradients.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients>;
}
