//! Randomness in the forward pass: dropout and Gaussian noise, drawn by sample of the *global* batch.
//!
//! Sample i of the global batch gets the same mask and noise on any rank. So several ranks compute the same as one.

use candle_core::{DType, Shape};

use crate::backend::Dropout;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Returns the position in the random stream of this rank's first sample, for a tensor whose first dimension is the
/// batch.
fn start(tape: &Tape, shape: &Shape) -> usize {
    tape.session().sample_offset * shape.dims().iter().skip(1).product::<usize>()
}

/// Returns the dropout of a tape that trains; `None` if nothing is dropped.
pub(super) fn drawn(tape: &Tape, p: f64) -> Result<Option<Dropout>> {
    if !(0.0..1.0).contains(&p) {
        return Err(TensorError::Argument {
            name: "p",
            value: p.to_string(),
            expected: "expected 0 ≤ p < 1",
        });
    }
    let first_sample = tape.session().sample_offset;
    let active = tape.training() && p > 0.0;
    Ok(active.then(|| Dropout { key: tape.next_key(), p, first_sample, rows: None }))
}

/// In training, sets each element to zero with probability `p` and divides the others by 1 − p (Srivastava et al.
/// 2014). In evaluation, returns the input. The first dimension is the batch. Backward draws the mask again.
///
/// # Errors
/// If `p` is not in [0, 1).
pub fn dropout(tape: &Tape, x: &Value, p: f64) -> Result<Value> {
    let Some(dropout) = drawn(tape, p)? else { return Ok(x.clone()) };
    let input = x.array()?.contiguous()?;
    let output = input.backend(tape.context()).dropout(&input, dropout)?;
    tape.push("dropout", &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).dropout(&grad, dropout)?)
    })
}

/// Draws standard normal noise of a shape whose first dimension is the batch. No gradient flows to it.
///
/// # Errors
/// If the element type is not supported.
pub fn gaussian_noise(tape: &Tape, shape: impl Into<Shape>, dtype: DType) -> Result<Value> {
    let shape = shape.into();
    let start = start(tape, &shape);
    Ok(Value::constant(tape.backend().gaussian_noise(tape.next_key(), start, &shape, dtype)?))
}
