//! Sums and means, in f32 for elements of 16 bits.

use super::cut::moved;
use crate::tape::{Op, Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

/// Sums all elements to a scalar; f32 for elements of 16 bits.
///
/// # Errors
/// If memory cannot be allocated.
pub fn sum(tape: &Tape, x: &Value) -> Result<Value> {
    scaled_sum(tape, x, 1.0)
}

/// Averages all elements to a scalar; f32 for elements of 16 bits.
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
    let x_t = x.array()?;
    let output = x_t.backend(tape.context()).sum_all(&x_t, factor)?;
    tape.push("sum", &[x], output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        grads.add(0, backend.broadcast_as(&backend.affine(grad, factor, 0.0)?, &shape)?)
    })
}

/// Sums over one dimension and removes it.
///
/// # Errors
/// If the dimension is out of range.
pub fn sum_over(tape: &Tape, x: &Value, dim: usize) -> Result<Value> {
    let shape = x.shape().clone();
    if dim >= shape.rank() {
        return Err(TensorError::shape("sum_over", format!("{shape:?} has no dimension {dim}")));
    }
    let rule = match x.placement() {
        Some(Placement::Shard { dim: cut }) if cut == dim => PlacementRule::Own(Placement::Partial),
        _ => moved("sum_over", x, |cut| Some(if cut > dim { cut - 1 } else { cut }))?,
    };
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).sum_over(&x_t, dim)?;
    tape.push_by(rule, Op::SumOver(dim), &[x], output, move |tape, grad, grads| {
        let mut kept = shape.dims().to_vec();
        kept[dim] = 1;
        let repeated = grad.backend(tape.context()).broadcast_as(&grad.reshape(kept)?, &shape)?;
        // A dimension of size one needs no copy: the gradient is the output's.
        if shape.dims()[dim] == 1 { grads.share(0, repeated) } else { grads.add(0, repeated) }
    })
}
