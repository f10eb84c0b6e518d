//! Softmax and scaled dot-product attention (Vaswani et al. 2017).

use candle_core::Shape;

use crate::backend::AttentionShape;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Softmax over the last dimension.
///
/// # Errors
/// If the element type is not supported.
pub fn softmax(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.array()?.contiguous()?;
    let output = input.backend(tape.context()).softmax(&input, input.dtype())?;
    let saved = output.clone();
    tape.push("softmax", &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).softmax_backward(&saved, &grad)?)
    })
}

/// softmax(q·kᵀ/√D)·v, the softmax in f32, for `q` of shape [N, heads, T, D] and `k` and `v` of shape [N, heads, S, D]; the
/// result is [N, heads, T, D]. Where S is T the positions may be those of one sequence; with `causal`, position t then sees
/// 0..=t. Where they are positions of another, this is cross-attention.
///
/// # Errors
/// If the shapes do not go together or are not four-dimensional, or `causal` is asked for between sequences of
/// different lengths.
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
        let problem = format!("causal attention of {length} positions to {keys}; expected as many");
        return Err(TensorError::shape(OP, problem));
    }
    let shape = AttentionShape { batch, heads, length, keys, dim, causal };
    let precision = tape.session().precision;
    let (q_t, k_t, v_t) = (q.array()?.contiguous()?, k.array()?.contiguous()?, v.array()?.contiguous()?);
    let attended = q_t.backend(tape.context()).attention(shape, &q_t, &k_t, &v_t, precision)?;
    let (q_saved, k_saved, v_saved) = (q.save(), k.save(), v.save());
    let saved = attended.saved;
    tape.push(OP, &[q, k, v], attended.output, move |tape, grad, grads| {
        let (q, k, v) =
            (q_saved.array()?.contiguous()?, k_saved.array()?.contiguous()?, v_saved.array()?.contiguous()?);
        let grad = grad.contiguous()?;
        let wants = [grads.wants(0), grads.wants(1), grads.wants(2)];
        let precision = tape.session().precision;
        let all = grad.backend(tape.context()).attention_backward(
            shape,
            [&q, &k, &v],
            &saved,
            &grad,
            precision,
            wants,
        )?;
        all.into_iter().enumerate().try_for_each(|(index, grad)| match grad {
            Some(grad) => grads.add(index, grad),
            None => Ok(()),
        })
    })
}
