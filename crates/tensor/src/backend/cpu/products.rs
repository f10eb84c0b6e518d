//! Matrix products and softmax, by the kernels.

use candle_core::{DType, Shape, Tensor};
use phalanx_kernels::{
    Matrix, MatrixMut, linear_forward, matmul_batched, softmax_rows_backward, softmax_rows_forward,
};

use crate::backend::{Array, Attended, AttentionShape, Destination, Factor, Products};
use crate::storage::{
    Contiguous, cast, dispatch, operand, stored, tensor_from, unwritten, wide, with_slice_mut,
};
use crate::{Context, Precision, Result};

impl Products for Context {
    fn matmul(
        &self,
        [batch, m, n, k]: [usize; 4],
        a: Factor<'_>,
        b: Factor<'_>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        const OP: &str = "matmul";
        let (a_t, b_t) = (a.array.host(OP)?, b.array.host(OP)?);
        let (a_read, b_read) = (operand(OP, self, precision, a_t)?, operand(OP, self, precision, b_t)?);
        dispatch!(OP, a_t.dtype(), T => {
            let mut out = unwritten::<T>(batch * m * n);
            let a = Matrix::batched(a_read.slice::<T>()?, m, k, a.transposed);
            let b = Matrix::batched(b_read.slice::<T>()?, k, n, b.transposed);
            matmul_batched(self, batch, a, b, MatrixMut::batched(&mut out, m, n), false)?;
            Ok(stored(self, out, shape.clone(), dtype)?.into())
        })
    }

    fn linear(
        &self,
        sizes: [usize; 3],
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        const OP: &str = "linear";
        let (x, w) = (x.host(OP)?, weight.host(OP)?);
        let (x_read, w_read) = (operand(OP, self, precision, x)?, operand(OP, self, precision, w)?);
        let bias = bias.map(|bias| Contiguous::by(OP, self, bias.host(OP)?)).transpose()?;
        dispatch!(OP, x.dtype(), T => {
            let bias = bias.as_ref().map(|bias| bias.slice::<T>()).transpose()?;
            let (x, w) = (x_read.slice::<T>()?, w_read.slice::<T>()?);
            let mut y = unwritten::<T>(sizes[0] * sizes[2]);
            linear_forward(self, sizes, x, w, bias, None, None, &mut y)?;
            Ok(stored(self, y, shape.clone(), dtype)?.into())
        })
    }

    fn linear_backward_weight(
        &self,
        [rows, inputs, outputs]: [usize; 3],
        dy: &Array,
        x: &Array,
        precision: Precision,
        to: &Destination,
    ) -> Result<()> {
        const OP: &str = "linear";
        let (grad, x) = (dy.host(OP)?, x.host(OP)?);
        let (x, dy) = (operand(OP, self, precision, x)?, operand(OP, self, precision, grad)?);
        dispatch!(OP, grad.dtype(), T => {
            let dy = Matrix::batched(dy.slice::<T>()?, outputs, rows, true);
            let x = Matrix::batched(x.slice::<T>()?, rows, inputs, false);
            with_slice_mut::<T, _>(OP, to.array.host(OP)?, |dw| {
                Ok(matmul_batched(self, 1, dy, x, MatrixMut::batched(dw, outputs, inputs), to.add)?)
            })
        })
    }

    fn linear_backward_bias(&self, [rows, _, outputs]: [usize; 3], dy: &Array) -> Result<Array> {
        let dy = dy.host("linear")?;
        let dy = cast(self, dy, wide(dy.dtype()))?;
        Ok(dy.reshape((rows, outputs))?.contiguous()?.sum(0)?.into())
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        Ok(softmax(self, x.host("softmax")?, dtype)?.into())
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "softmax";
        Ok(softmax_backward(self, y.host(OP)?, dy.host(OP)?)?.into())
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Array,
        k: &Array,
        v: &Array,
        precision: Precision,
    ) -> Result<Attended> {
        const OP: &str = "attention";
        let AttentionShape { length, keys, dim, causal, .. } = shape;
        let (q, k) = (Factor::plain(q), Factor::transposed(k));
        let wide = wide(q.array.dtype());
        let scores = self.matmul(scores_sizes(shape), q, k, &pairs(shape), precision, wide)?;
        scale_and_mask(scores.host(OP)?, 1.0 / (dim as f64).sqrt(), causal)?;
        let dtype = precision.product(wide);
        let saved = Array::from(softmax(self, scores.host(OP)?, dtype)?);
        drop(scores);
        let sizes = [shape.batch * shape.heads, length, dim, keys];
        let queries = outer(shape, length);
        let output =
            self.matmul(sizes, Factor::plain(&saved), Factor::plain(v), &queries, precision, dtype)?;
        Ok(Attended { output, saved })
    }

    fn attention_backward(
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
        let wide = wide(grad.dtype());
        let grad_weights = self.matmul(scores_sizes(shape), dy, v, &pairs(shape), precision, wide)?;
        // Masked weights are zero, and softmax's gradient is a product with them, so the mask needs no step.
        let factor = 1.0 / (dim as f64).sqrt();
        let grad_scores = softmax_backward(self, saved.host(OP)?, grad_weights.host(OP)?)?;
        let grad_scores = Array::from((grad_scores * factor)?);
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

fn softmax(context: &Context, x: &Tensor, dtype: DType) -> Result<Tensor> {
    const OP: &str = "softmax";
    let read = Contiguous::by(OP, context, x)?;
    let width = x.dims().last().copied().unwrap_or(1);
    dispatch!(OP, x.dtype(), T => {
        let from = read.slice::<T>()?;
        let mut out = unwritten::<T>(from.len());
        softmax_rows_forward(context, from.len() / width.max(1), width, from, &mut out)?;
        stored(context, out, x.shape().clone(), dtype)
    })
}

fn softmax_backward(context: &Context, y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    const OP: &str = "softmax";
    let (y_read, grad_read) = (Contiguous::by(OP, context, y)?, Contiguous::by(OP, context, grad)?);
    let width = y.dims().last().copied().unwrap_or(1);
    dispatch!(OP, y.dtype(), T => {
        let (y_values, grad_values) = (y_read.slice::<T>()?, grad_read.slice::<T>()?);
        let mut out = unwritten::<T>(y_values.len());
        softmax_rows_backward(context, y_values.len() / width.max(1), width, y_values, grad_values, &mut out)?;
        tensor_from(out, y.shape().clone())
    })
}

/// Multiplies scores by `factor` and, if `causal`, sets those of later positions to −∞, in place.
fn scale_and_mask(scores: &Tensor, factor: f64, causal: bool) -> Result<()> {
    use phalanx_kernels::Float as _;
    const OP: &str = "attention";
    let (length, keys) = (scores.dims()[2], scores.dims()[3]);
    dispatch!(OP, scores.dtype(), T => with_slice_mut::<T, _>(OP, scores, |values| {
        let factor = T::from_f64(factor);
        for (row, values) in values.chunks_exact_mut(keys.max(1)).enumerate() {
            let seen = if causal { row % length + 1 } else { keys };
            values[..seen].iter_mut().for_each(|v| *v *= factor);
            values[seen..].fill(T::from_f64(f64::NEG_INFINITY));
        }
        Ok(())
    }))
}
