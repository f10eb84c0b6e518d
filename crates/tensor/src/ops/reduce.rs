//! Sums and means, in f32 also over elements of 16 bits.

use crate::storage::{cast, wide};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// The sum of all elements, as a scalar; f32 for elements of 16 bits.
///
/// # Errors
/// If memory cannot be allocated.
pub fn sum(tape: &Tape, x: &Value) -> Result<Value> {
    scaled_sum(tape, x, 1.0)
}

/// The mean of all elements, as a scalar; f32 for elements of 16 bits.
///
/// # Errors
/// If there are no elements.
pub fn mean(tape: &Tape, x: &Value) -> Result<Value> {
    let count = x.shape().elem_count();
    if count == 0 {
        return Err(TensorError::shape("mean", "no elements"));
    }
    scaled_sum(tape, x, 1.0 / count as f64)
}

fn scaled_sum(tape: &Tape, x: &Value, factor: f64) -> Result<Value> {
    let shape = x.shape().clone();
    let x_t = x.tensor()?;
    let output = (cast(tape.context(), &x_t, wide(x_t.dtype()))?.contiguous()?.sum_all()? * factor)?;
    tape.push("sum", &[x], output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.add(0, (grad * factor)?.broadcast_as(&shape)?.contiguous()?)
    })
}

/// The sum over one dimension, which disappears.
///
/// # Errors
/// If the dimension is out of range.
pub fn sum_over(tape: &Tape, x: &Value, dim: usize) -> Result<Value> {
    let shape = x.shape().clone();
    let (cx, x_t) = (tape.context(), x.tensor()?);
    let sums = cast(cx, &x_t, wide(x_t.dtype()))?.contiguous()?.sum(dim)?;
    let output = cast(cx, &sums, x_t.dtype())?;
    tape.push("sum_over", &[x], output, move |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.add(0, grad.unsqueeze(dim)?.broadcast_as(&shape)?.contiguous()?)
    })
}
