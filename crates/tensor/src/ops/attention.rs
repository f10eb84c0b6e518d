//! Softmax and scaled dot-product attention (Vaswani et al. 2017).

use candle_core::{Tensor, WithDType as _};
use phalanx_kernels::{softmax_rows_backward, softmax_rows_forward};

use super::linear::{Read, product};
use crate::storage::unwritten;
use crate::storage::{Contiguous, cast, dispatch, tensor_from, with_slice_mut};
use crate::tape::{Tape, Value};
use crate::{Context, Result, TensorError};

/// Softmax of every row (the last dimension), not rounded.
fn softmax_forward(context: &Context, x: &Tensor) -> Result<Tensor> {
    const OP: &str = "softmax";
    let x = x.contiguous()?;
    let read = Contiguous::by(OP, context, &x)?;
    let width = x.dims().last().copied().unwrap_or(1);
    dispatch!(OP, x.dtype(), T => {
        let from = read.slice::<T>()?;
        let mut out = unwritten::<T>(from.len());
        softmax_rows_forward(context, from.len() / width.max(1), width, from, &mut out)?;
        tensor_from(out, x.shape().clone())
    })
}

/// The gradient of softmax's input from that of its output `y`.
fn softmax_backward(context: &Context, y: &Tensor, grad: &Tensor) -> Result<Tensor> {
    const OP: &str = "softmax";
    let grad = grad.contiguous()?;
    let (y_read, grad_read) = (Contiguous::by(OP, context, y)?, Contiguous::by(OP, context, &grad)?);
    let width = y.dims().last().copied().unwrap_or(1);
    dispatch!(OP, y.dtype(), T => {
        let (y_values, grad_values) = (y_read.slice::<T>()?, grad_read.slice::<T>()?);
        let mut out = unwritten::<T>(y_values.len());
        softmax_rows_backward(context, y_values.len() / width.max(1), width, y_values, grad_values, &mut out)?;
        tensor_from(out, y.shape().clone())
    })
}

/// Softmax over the last dimension.
///
/// # Errors
/// If the element type is not supported.
pub fn softmax(tape: &Tape, x: &Value) -> Result<Value> {
    let x_t = x.tensor()?;
    let output = softmax_forward(tape.context(), &x_t)?;
    let output = cast(tape.context(), &output, x_t.dtype())?;
    let saved = output.clone();
    tape.push("softmax", &[x], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        grads.add(0, softmax_backward(tape.context(), &saved, grad)?)
    })
}

/// softmax(q·kᵀ/√D)·v, the softmax in f32, for `q`, `k`, `v` of shape [N, heads, T, D]; with `causal`, position t sees 0..=t.
///
/// # Errors
/// If the shapes differ or are not four-dimensional.
pub fn attention(tape: &Tape, q: &Value, k: &Value, v: &Value, causal: bool) -> Result<Value> {
    const OP: &str = "attention";
    let &[batch, heads, length, dim] = q.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, heads, T, D], not {:?}", q.shape())));
    };
    for other in [k, v] {
        if other.shape() != q.shape() {
            return Err(TensorError::unequal(OP, q.shape(), other.shape()));
        }
    }
    let cx = tape.context();
    let pairs = batch * heads;
    let factor = 1.0 / (dim as f64).sqrt();
    let square = vec![batch, heads, length, length];
    let shape = q.dims().to_vec();
    let size = [pairs, length, length, dim];
    let scores = product(
        tape,
        OP,
        size,
        (&q.tensor()?, Read::Plain),
        (&k.tensor()?, Read::Transposed),
        square.clone(),
    )?;
    scale_and_mask(&scores, factor, causal)?;
    let dtype = tape.session().precision.product(scores.dtype());
    let weights = cast(cx, &softmax_forward(cx, &scores)?, dtype)?;
    drop(scores);
    let size = [pairs, length, dim, length];
    let output =
        product(tape, OP, size, (&weights, Read::Plain), (&v.tensor()?, Read::Plain), shape.clone())?;
    let output = cast(cx, &output, dtype)?;
    let (q_saved, k_saved, v_saved) = (q.save(), k.save(), v.save());
    tape.push(OP, &[q, k, v], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let cx = tape.context();
        if grads.wants(2) {
            let size = [pairs, length, dim, length];
            let grad_v =
                product(tape, OP, size, (&weights, Read::Transposed), (grad, Read::Plain), shape.clone())?;
            grads.add(2, grad_v)?;
        }
        if !grads.wants(0) && !grads.wants(1) {
            return Ok(());
        }
        let size = [pairs, length, length, dim];
        let grad_weights = product(
            tape,
            OP,
            size,
            (grad, Read::Plain),
            (&v_saved.array()?.tensor()?, Read::Transposed),
            square,
        )?;
        // Masked weights are zero, and softmax's gradient is a product with them, so the mask needs no step.
        let grad_scores = (softmax_backward(cx, &weights, &grad_weights)? * factor)?;
        let size = [pairs, length, dim, length];
        if grads.wants(0) {
            let k = k_saved.array()?.tensor()?;
            grads.add(
                0,
                product(tape, OP, size, (&grad_scores, Read::Plain), (&k, Read::Plain), shape.clone())?,
            )?;
        }
        if grads.wants(1) {
            let q = q_saved.array()?.tensor()?;
            grads.add(
                1,
                product(tape, OP, size, (&grad_scores, Read::Transposed), (&q, Read::Plain), shape)?,
            )?;
        }
        Ok(())
    })
}

/// Multiplies scores by `factor` and, if `causal`, sets those of later positions to −∞, in place.
fn scale_and_mask(scores: &Tensor, factor: f64, causal: bool) -> Result<()> {
    const OP: &str = "attention";
    let length = scores.dims()[3];
    dispatch!(OP, scores.dtype(), T => with_slice_mut::<T, _>(OP, scores, |values| {
        let factor = T::from_f64(factor);
        for (row, values) in values.chunks_exact_mut(length.max(1)).enumerate() {
            let seen = if causal { row % length + 1 } else { length };
            values[..seen].iter_mut().for_each(|v| *v *= factor);
            values[seen..].fill(T::from_f64(f64::NEG_INFINITY));
        }
        Ok(())
    }))
}
