//! Randomness in the forward pass: dropout and Gaussian noise, drawn by sample of the *global* batch.
//!
//! Sample i of the global batch gets the same mask and noise whatever rank holds it, so that several ranks
//! compute what one rank would.

use candle_core::{DType, Shape, Tensor, WithDType as _};

use crate::storage::{dispatch, tensor_from};
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
    let mask = dispatch!(OP, values.dtype(), T => {
        let mask = drawn.iter().map(|u| if *u < p { T::from_f64(0.0) } else { T::from_f64(keep) }).collect::<Vec<T>>();
        tensor_from(mask, x.shape().clone())
    })?;
    let output = (&values * &mask)?;
    tape.push(OP, &[x], output, move |_, grad, grads| grads.add(0, (grad * &mask)?))
}

/// Standard normal noise of a shape whose first dimension is the batch. No gradient flows to it.
///
/// # Errors
/// If the element type is not supported.
pub fn gaussian_noise(tape: &Tape, shape: impl Into<Shape>, dtype: DType) -> Result<Value> {
    let shape = shape.into();
    let drawn = draw(tape, &shape, true);
    let noise: Tensor = dispatch!("gaussian_noise", dtype, T => {
        tensor_from(drawn.iter().map(|v| T::from_f64(*v)).collect::<Vec<T>>(), shape)
    })?;
    Ok(Value::constant(noise))
}
