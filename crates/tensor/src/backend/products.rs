//! Matrix products, and attention, which is made of them.

use candle_core::{DType, Shape};

use super::{Array, Destination};
use crate::{Precision, Result};

/// A matrix as a factor: as it lies, or read transposed.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    /// The elements, a matrix for each product.
    pub array: &'a Array,
    /// Whether each is read transposed.
    pub transposed: bool,
}

impl<'a> Factor<'a> {
    /// Matrices as they lie.
    pub fn plain(array: &'a Array) -> Self {
        Self { array, transposed: false }
    }

    /// Matrices read transposed.
    pub fn transposed(array: &'a Array) -> Self {
        Self { array, transposed: true }
    }
}

/// The sizes of attention, and what a position sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Samples.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// Positions that look: those of q.
    pub length: usize,
    /// Positions that are looked at: those of k and v.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Whether position t sees only 0..=t.
    pub causal: bool,
}

/// What attention gives.
#[derive(Debug)]
pub struct Attended {
    /// softmax(q·kᵀ/√D)·v, as the precision stores products.
    pub output: Array,
    /// What backward needs besides the inputs: on the CPU ln Σ e^score of every position that looks, [N, heads, T], in the type
    /// that is computed in.
    pub saved: Array,
}

/// What a back end multiplies. Operands are rounded to what `precision` multiplies, and sums are f32 for operands of 16 bits.
pub trait Products {
    /// `batch` products of m×k and k×n matrices, `[batch, m, n, k]` being `sizes`, under `shape` and stored as `dtype`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn matmul(
        &self,
        sizes: [usize; 4],
        a: Factor<'_>,
        b: Factor<'_>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array>;

    /// x·Wᵀ + b of `[rows, inputs, outputs]` in `sizes`, under `shape` and stored as `dtype`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear(
        &self,
        sizes: [usize; 3],
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array>;

    /// dyᵀ·x, the gradient of a linear layer's weight.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear_backward_weight(
        &self,
        sizes: [usize; 3],
        dy: &Array,
        x: &Array,
        precision: Precision,
        to: &Destination,
    ) -> Result<()>;

    /// The sums of the columns of dy, a linear layer's gradient of the bias: `[outputs]`, f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear_backward_bias(&self, sizes: [usize; 3], dy: &Array) -> Result<Array>;

    /// Softmax of every row (the last dimension), stored as `dtype`.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array>;

    /// The gradient of softmax's input from its output `y` and that one's gradient; f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array>;

    /// softmax(q·kᵀ/√D)·v of q [N, heads, T, D] and k and v [N, heads, S, D], the softmax in f32.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn attention(
        &self,
        shape: AttentionShape,
        q: &Array,
        k: &Array,
        v: &Array,
        precision: Precision,
    ) -> Result<Attended>;

    /// The gradients of q, k and v, those of `wants`.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn attention_backward(
        &self,
        shape: AttentionShape,
        inputs: [&Array; 3],
        saved: &Array,
        grad: &Array,
        precision: Precision,
        wants: [bool; 3],
    ) -> Result<[Option<Array>; 3]>;
}
