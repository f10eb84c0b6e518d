//! Randomness in the forward pass: dropout and Gaussian noise, drawn by sample of the *global* batch.
//!
//! Sample i of the global batch gets the same mask and noise whatever rank holds it, so that several ranks
//! compute what one rank would.

use candle_core::{DType, Shape, Tensor, WithDType as _};

use crate::storage::{Contiguous, dispatch, stored};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Uniform numbers in [0, 1) for a tensor whose first dimension is this rank's samples.
fn draw(tape: &Tape, shape: &Shape, normal: bool) -> Vec<f64> {
    let per_sample: usize = shape.dims().iter().skip(1).product();
    let start = tape.session().sample_offset * per_sample;
    let mut out = vec![0.0; shape.elem_count()];
    let key = tape.next_key();
    if normal {
        key.normal(start, &mut out);
    } else {
        key.uniform(start, &mut out);
    }
    out
}

/// In training, sets each element to zero with probability `p` and divides the others by 1 − p
/// (Srivastava et al. 2014); in evaluation, the identity. The first dimension is the batch.
///
/// # Errors
/// If `p` is not in [0, 1).
pub fn dropout(tape: &Tape, x: &Value, p: f64) -> Result<Value> {
    const OP: &str = "dropout";
    if !(0.0..1.0).contains(&p) {
        return Err(TensorError::Argument {
            name: "p",
            value: p.to_string(),
            expected: "expected 0 ≤ p < 1",
        });
    }
    if !tape.training() || p == 0.0 {
        return Ok(x.clone());
    }
    let keep = 1.0 / (1.0 - p);
    let drawn = draw(tape, x.shape(), false);
    let values = x.tensor()?.contiguous()?;
    let kept: Vec<bool> = drawn.iter().map(|u| *u >= p).collect();
    let output = masked(tape, &values, &kept, keep)?;
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        grads.add(0, masked(tape, &grad.contiguous()?, &kept, keep)?)
    })
}

/// `x` times `factor` where `kept`, times 0 elsewhere, in the type of `x`.
fn masked(tape: &Tape, x: &Tensor, kept: &[bool], factor: f64) -> Result<Tensor> {
    const OP: &str = "dropout";
    let read = Contiguous::by(OP, tape.context(), x)?;
    dispatch!(OP, x.dtype(), T => {
        let factors = [T::from_f64(0.0), T::from_f64(factor)];
        let values = read.slice::<T>()?.iter().zip(kept).map(|(x, kept)| *x * factors[usize::from(*kept)]);
        stored(tape.context(), values.collect::<Vec<T>>(), x.shape().clone(), x.dtype())
    })
}

/// Standard normal noise of a shape whose first dimension is the batch. No gradient flows to it.
///
/// # Errors
/// If the element type is not supported.
pub fn gaussian_noise(tape: &Tape, shape: impl Into<Shape>, dtype: DType) -> Result<Value> {
    let shape = shape.into();
    let drawn = draw(tape, &shape, true);
    let noise: Tensor = dispatch!("gaussian_noise", dtype, T => {
        stored(tape.context(), drawn.iter().map(|v| T::from_f64(*v)).collect::<Vec<T>>(), shape, dtype)
    })?;
    Ok(Value::constant(noise))
}
