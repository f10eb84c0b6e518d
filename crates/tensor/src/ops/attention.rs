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
