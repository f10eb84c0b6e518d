//! Elementwise sums and products. Elements of 16 bits are computed in f32 and rounded once. The result has 16 bits if
//! one operand has.

use crate::backend::{Array, BinaryOp};
use crate::tape::{Op, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

fn binary(tape: &Tape, op: BinaryOp, a: &Value, b: &Value) -> Result<Array> {
    let (a, b) = (a.part()?, b.part()?);
    Ok(Array::backend_of(tape.context(), [&a, &b]).binary(op, &a, &b)?)
}

fn same_shape(op: &'static str, a: &Value, b: &Value) -> Result<()> {
    if a.shape() == b.shape() { Ok(()) } else { Err(TensorError::unequal(op, a.shape(), b.shape())) }
}

/// Adds values of equal shapes.
///
/// # Errors
/// If the shapes differ.
pub fn add(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("add", a, b)?;
    let output = binary(tape, BinaryOp::Add, a, b)?;
    tape.push_by(PlacementRule::Linear, Op::Add, &[a, b], output, |_, grad, grads| {
        grads.share(0, grad)?;
        grads.share(1, grad)
    })
}

/// Subtracts values of equal shapes.
///
/// # Errors
/// If the shapes differ.
pub fn sub(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("sub", a, b)?;
    let output = binary(tape, BinaryOp::Sub, a, b)?;
    tape.push_by(PlacementRule::Linear, Op::Sub, &[a, b], output, |tape, grad, grads| {
        grads.share(0, grad)?;
        if grads.wants(1) { grads.add(1, grad.backend(tape.context()).neg(grad)?) } else { Ok(()) }
    })
}

/// Multiplies values of equal shapes elementwise.
///
/// # Errors
/// If the shapes differ.
pub fn mul(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    same_shape("mul", a, b)?;
    broadcast_mul(tape, a, b)
}

/// Computes a + b with b broadcast to a's shape, by PyTorch's rules (dimensions align at the end; 1 stretches).
///
/// # Errors
/// If b does not broadcast to a's shape.
pub fn broadcast_add(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    let output = binary(tape, BinaryOp::Add, a, b)?;
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    tape.push_by(PlacementRule::Linear, Op::Add, &[a, b], output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        grads.share(0, backend.sum_to_shape(grad, &a_shape)?)?;
        grads.share(1, backend.sum_to_shape(grad, &b_shape)?)
    })
}

/// Computes a · b elementwise, broadcast to each other by PyTorch's rules.
///
/// # Errors
/// If the shapes do not broadcast.
pub fn broadcast_mul(tape: &Tape, a: &Value, b: &Value) -> Result<Value> {
    let output = binary(tape, BinaryOp::Mul, a, b)?;
    let (a_shape, b_shape) = (a.shape().clone(), b.shape().clone());
    let (a_saved, b_saved) = (a.save(), b.save());
    tape.push_by(PlacementRule::Elementwise, Op::Mul, &[a, b], output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        if grads.wants(0) {
            grads.share(0, backend.mul_backward(grad, &b_saved.array()?, &a_shape)?)?;
        }
        if grads.wants(1) {
            grads.share(1, backend.mul_backward(grad, &a_saved.array()?, &b_shape)?)?;
        }
        Ok(())
    })
}

/// Computes x · factor.
///
/// # Errors
/// If memory cannot be allocated.
pub fn scale(tape: &Tape, x: &Value, factor: f64) -> Result<Value> {
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).affine(&x_t, factor, 0.0)?;
    tape.push_by(PlacementRule::Linear, Op::Scale(factor), &[x], output, move |tape, grad, grads| {
        grads.add(0, grad.backend(tape.context()).affine(grad, factor, 0.0)?)
    })
}

/// Computes x + addend.
///
/// # Errors
/// If memory cannot be allocated.
pub fn add_scalar(tape: &Tape, x: &Value, addend: f64) -> Result<Value> {
    let x_t = x.part()?;
    let output = x_t.backend(tape.context()).affine(&x_t, 1.0, addend)?;
    tape.push_by(PlacementRule::Elementwise, Op::AddScalar(addend), &[x], output, |_, grad, grads| {
        grads.share(0, grad)
    })
}
