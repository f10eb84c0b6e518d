//! Softmax and scaled dot-product attention (Vaswani et al. 2017).

use candle_core::Shape;

use crate::backend::{AttentionBackward, AttentionInputs, AttentionShape};
use crate::tape::{Op, Tape, Value};
use crate::{Result, TensorError};

/// Computes softmax over the last dimension.
///
/// # Errors
/// If the element type is not supported.
pub fn softmax(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.array()?.contiguous()?;
    let output = input.backend(tape.context()).softmax(&input, input.dtype())?;
    let saved = output.clone();
    tape.push(Op::Softmax, &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).softmax_backward(&saved, &grad)?)
    })
}

/// Computes softmax(q·kᵀ/√D)·v, with the softmax in f32: self-attention or cross-attention.
///
/// `q` is [N, heads, T, D], `k` and `v` are [N, heads, S, D], and the result is [N, heads, T, D]. With `causal`,
/// position t attends to 0..=t, and S must be T.
///
/// # Errors
/// If the shapes do not match or are not four-dimensional, or `causal` is set for sequences of different lengths.
pub fn attention(tape: &Tape, q: &Value, k: &Value, v: &Value, causal: bool) -> Result<Value> {
    const OP: &str = "attention";
    let (&[batch, heads, length, dim], &[.., keys, _]) = (q.dims(), k.dims()) else {
        return Err(TensorError::shape(OP, format!("expected [N, heads, T, D], not {:?}", q.shape())));
    };
    let seen = Shape::from((batch, heads, keys, dim));
    for other in [k, v] {
        if *other.shape() != seen {
            return Err(TensorError::unequal(OP, &seen, other.shape()));
        }
    }
    if causal && keys != length {
        let problem = format!("causal attention of {length} positions to {keys}; expected equal numbers");
        return Err(TensorError::shape(OP, problem));
    }
    let shape = AttentionShape { batch, heads, length, keys, dim, causal };
    let precision = tape.session().precision;
    let (q_t, k_t, v_t) = (q.array()?.contiguous()?, k.array()?.contiguous()?, v.array()?.contiguous()?);
    let inputs = AttentionInputs { shape, q: &q_t, k: &k_t, v: &v_t, precision };
    let attended = q_t.backend(tape.context()).attention(inputs)?;
    let (q_saved, k_saved, v_saved) = (q.save(), k.save(), v.save());
    let saved = attended.saved;
    tape.push(Op::Attention { causal }, &[q, k, v], attended.output, move |tape, grad, grads| {
        let (q, k, v) =
            (q_saved.array()?.contiguous()?, k_saved.array()?.contiguous()?, v_saved.array()?.contiguous()?);
        let grad = grad.contiguous()?;
        let wants = [grads.wants(0), grads.wants(1), grads.wants(2)];
        let precision = tape.session().precision;
        let inputs = AttentionInputs { shape, q: &q, k: &k, v: &v, precision };
        let of = AttentionBackward { inputs, saved: &saved, grad: &grad, wants };
        let all = grad.backend(tape.context()).attention_backward(of)?;
        all.into_iter().enumerate().try_for_each(|(index, grad)| match grad {
            Some(grad) => grads.add(index, grad),
            None => Ok(()),
        })
    })
}

/// Computes attention of a projection [N, T, 3·C] of queries, keys and values to itself, by `heads` heads. The result
/// is [N, T, C]. With `causal`, position t attends to 0..=t.
///
/// # Errors
/// If the shape is another, or the heads do not divide C.
pub fn self_attention(tape: &Tape, projected: &Value, heads: usize, causal: bool) -> Result<Value> {
    let sizes = match projected.dims() {
        &[batch, length, all] if heads > 0 && all.is_multiple_of(3 * heads) => Some((batch, length, all / 3)),
        _ => None,
    };
    let Some((batch, length, width)) = sizes else {
        let problem = format!("expected [N, T, 3·C] with {heads} heads in C, not {:?}", projected.shape());
        return Err(TensorError::shape("attention", problem));
    };
    let head = width / heads;
    let all = super::reshape(tape, projected, (batch, length, 3, heads, head))?;
    // [3, N, heads, T, D]: then q, k and v are contiguous thirds.
    let all = super::permute(tape, &all, &[2, 0, 3, 1, 4])?;
    let third = |index: usize| -> Result<Value> {
        let part = super::narrow(tape, &all, 0, index, 1)?;
        super::reshape(tape, &part, (batch, heads, length, head))
    };
    let mixed = attention(tape, &third(0)?, &third(1)?, &third(2)?, causal)?;
    let mixed = super::permute(tape, &mixed, &[0, 2, 1, 3])?;
    super::reshape(tape, &mixed, (batch, length, width))
}
