//! Attention of heads that are too large for kernels of one pass: products, and softmax between them.

use candle_core::Shape;
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::backend::{Array, Attended, AttentionShape, Factor, Products as _};
use crate::storage::wide;
use crate::{Precision, Result};

impl Cuda {
    /// softmax(q·kᵀ/√D)·v, with the weights for backward.
    pub(super) fn attention_by_products(
        &self,
        shape: AttentionShape,
        [q, k, v]: [&Array; 3],
        precision: Precision,
    ) -> Result<Attended> {
        const OP: &str = "attention";
        let AttentionShape { length, keys, dim, causal, .. } = shape;
        let wide = wide(q.dtype());
        let factors = (Factor::plain(q), Factor::transposed(k));
        let scores =
            self.matmul(scores_sizes(shape), factors.0, factors.1, &pairs(shape), precision, wide)?;
        let dtype = precision.product(wide);
        let (from, factor) = (self.open(OP, &scores)?, 1.0 / (dim as f64).sqrt());
        kernels::scale_and_mask(self.gpu(), from.slice(), [length, keys], factor, causal)?;
        let weights = kernels::softmax(self.gpu(), from.slice(), keys, element_type(OP, dtype)?)?;
        let saved = self.array(weights, pairs(shape));
        drop(scores);
        let sizes = [shape.batch * shape.heads, length, dim, keys];
        let (weights, queries) = (Factor::plain(&saved), outer(shape, length));
        let output = self.matmul(sizes, weights, Factor::plain(v), &queries, precision, dtype)?;
        Ok(Attended { output, saved })
    }

    /// The gradients of q, k and v, those of `wants`, from the weights.
    pub(super) fn attention_by_products_backward(
        &self,
        shape: AttentionShape,
        [q, k, v]: [&Array; 3],
        saved: &Array,
        grad: &Array,
        precision: Precision,
        wants: [bool; 3],
    ) -> Result<[Option<Array>; 3]> {
        const OP: &str = "attention";
        let AttentionShape { length, keys, dim, .. } = shape;
        // Of as many rows as `rows`, from sums over `over`.
        let product = |rows: usize, over: usize, a: Factor<'_>, b: Factor<'_>| {
            let sizes = [shape.batch * shape.heads, rows, dim, over];
            self.matmul(sizes, a, b, &outer(shape, rows), precision, wide(a.array.dtype()))
        };
        let mut grads = [None, None, None];
        if wants[2] {
            grads[2] = Some(product(keys, length, Factor::transposed(saved), Factor::plain(grad))?);
        }
        if !wants[0] && !wants[1] {
            return Ok(grads);
        }
        let (dy, v) = (Factor::plain(grad), Factor::transposed(v));
        let grad_weights =
            self.matmul(scores_sizes(shape), dy, v, &pairs(shape), precision, wide(grad.dtype()))?;
        // Masked weights are zero, and softmax's gradient is a product with them, so the mask needs no step.
        let (weights, factor) = (self.open(OP, saved)?, 1.0 / (dim as f64).sqrt());
        let from = self.slice(OP, &grad_weights)?;
        let scores = kernels::softmax_backward(self.gpu(), weights.slice(), from, keys)?;
        kernels::scale_and_mask(self.gpu(), &scores, [length, keys], factor, false)?;
        let grad_scores = self.array(scores, pairs(shape));
        if wants[0] {
            grads[0] = Some(product(length, keys, Factor::plain(&grad_scores), Factor::plain(k))?);
        }
        if wants[1] {
            grads[1] = Some(product(keys, length, Factor::transposed(&grad_scores), Factor::plain(q))?);
        }
        Ok(grads)
    }
}

fn scores_sizes(shape: AttentionShape) -> [usize; 4] {
    [shape.batch * shape.heads, shape.length, shape.keys, shape.dim]
}

/// The shape of scores.
fn pairs(shape: AttentionShape) -> Shape {
    Shape::from((shape.batch, shape.heads, shape.length, shape.keys))
}

/// The shape of `rows` positions.
fn outer(shape: AttentionShape, rows: usize) -> Shape {
    Shape::from((shape.batch, shape.heads, rows, shape.dim))
}
