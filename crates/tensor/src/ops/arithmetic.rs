//! Elementwise sums and products. Elements of 16 bits are computed with in f32 and rounded once; where they meet f32, the
//! result has 16 bits.

use candle_core::{Shape, Tensor};

use crate::storage::{cast, meet, wide};
use crate::tape::{Tape, Value};
use crate::{Context, Result, TensorError};

/// Reduces a gradient of a broadcast result to the shape of the operand that was broadcast; in f32 if anything is added.
pub(super) fn sum_to_shape(context: &Context, grad: &Tensor, shape: &Shape) -> Result<Tensor> {
    if grad.shape() == shape {
        return Ok(grad.clone());
    }
    let grad = cast(context, grad, wide(grad.dtype()))?;
    let (dims, extra) = (shape.dims(), grad.rank() - shape.rank());
    let mut summed: Vec<usize> = (0..extra).collect();
    summed
        .extend((0..dims.len()).filter(|d| dims[*d] == 1 && grad.dims()[extra + d] != 1).map(|d| d + extra));
    let grad = if summed.is_empty() { grad.clone() } else { grad.contiguous()?.sum_keepdim(summed)? };
    Ok(grad.reshape(shape)?)
}

/// What candle computes of two operands, in the type that their result is stored in.
fn elementwise(
    tape: &Tape,
    op: &'static str,
    a: &Value,
    b: &Value,
    compute: impl FnOnce(&Tensor, &Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    let (a, b, dtype) = meet(tape.context(), op, &a.tensor()?, &b.tensor()?)?;
    cast(tape.context(), &compute(&a, &b)?, dtype)
}

/// Computes on one operand, in the type that is computed in, and rounds to its own.
fn single(
    context: &Context,
    x: &Tensor,
    compute: impl FnOnce(&Tensor) -> candle_core::Result<Tensor>,
) -> Result<Tensor> {
    cast(context, &compute(&cast(context, x, wide(x.dtype()))?)?, x.dtype())
}

fn same_shape(op: &'static str, a: &Value, b: &Value) -> Result<()> {
    if a.shape() == b.shape() { Ok(()) } else { Err(TensorError::unequal(op, a.shape(), b.shape())) }
}

/// a + b, of equal shapes.
///
/// # Errors
/// If the shapes differ.
pub fn add(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("add", a, b)?;
    let output = elementwise(tape, "add", a, b, |a, b| a + b)?;
    tape.push("add", &[a, b], output, |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, grad.clone())?;
        grads.share(1, grad.clone())
    })
}

/// a − b, of equal shapes.
///
/// # Errors
/// If the shapes differ.
pub fn sub(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("sub", a, b)?;
    let output = elementwise(tape, "sub", a, b, |a, b| a - b)?;
    tape.push("sub", &[a, b], output, |_, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, grad.clone())?;
        if grads.wants(1) { grads.add(1, grad.neg()?) } else { Ok(()) }
    })
}

/// a · b elementwise, of equal shapes.
///
/// # Errors
/// If the shapes differ.
pub fn mul(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("mul", a, b)?;
    broadcast_mul(tape, a, b)
}

/// a + b with b broadcast to a's shape, by PyTorch's rules (dimensions align at the end; 1 stretches).
///
/// # Errors
/// If b does not broadcast to a's shape.
pub fn broadcast_add(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    let output = elementwise(tape, "broadcast_add", a, b, Tensor::broadcast_add)?;
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    tape.push("broadcast_add", &[a, b], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        grads.share(0, sum_to_shape(tape.context(), grad, &a_shape)?)?;
        grads.share(1, sum_to_shape(tape.context(), grad, &b_shape)?)
    })
}

/// a · b elementwise with either broadcast to the other's shape, by PyTorch's rules.
///
/// # Errors
/// If the shapes do not broadcast.
pub fn broadcast_mul(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    let output = elementwise(tape, "mul", a, b, Tensor::broadcast_mul)?;
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    let (a_saved, b_saved) = (a.save(), b.save());
    tape.push("mul", &[a, b], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let cx = tape.context();
        // Not rounded before it is summed.
        let times = |other: Tensor| -> Result<Tensor> {
            let (grad, other, _) = meet(cx, "mul", grad, &other)?;
            Ok(grad.broadcast_mul(&other)?)
        };
        if grads.wants(0) {
            grads.share(0, sum_to_shape(cx, &times(b_saved.array()?.tensor()?)?, &a_shape)?)?;
        }
        if grads.wants(1) {
            grads.share(1, sum_to_shape(cx, &times(a_saved.array()?.tensor()?)?, &b_shape)?)?;
        }
        Ok(())
    })
}

/// x · factor.
///
/// # Errors
/// If memory cannot be allocated.
pub fn scale(tape: &Tape, x: &Value, factor: f64) -> Result<Value> {
    let output = single(tape.context(), &x.tensor()?, |x| x * factor)?;
    tape.push("scale", &[x], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        grads.add(0, single(tape.context(), grad, |grad| grad * factor)?)
    })
}

/// x + addend.
///
/// # Errors
/// If memory cannot be allocated.
pub fn add_scalar(tape: &Tape, x: &Value, addend: f64) -> Result<Value> {
    let output = single(tape.context(), &x.tensor()?, |x| x + addend)?;
    tape.push("add_scalar", &[x], output, |_, grad, grads| grads.share(0, grad.tensor()?.clone()))
}
