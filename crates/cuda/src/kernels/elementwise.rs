//! Elementwise functions of one argument, and their derivatives.

use phalanx_kernels::UnaryOp;

use super::grid::{backward_suffix, check_float, check_len, launch, over, pack};
use super::sources::ELEMENTWISE;
use crate::{Gpu, Result, Slice};

/// Returns the name of a function's kernels, and its parameters.
fn parameters(op: UnaryOp) -> (&'static str, [f64; 2]) {
    match op {
        UnaryOp::Relu => ("relu", [0.0; 2]),
        UnaryOp::ReluSquared => ("relu_squared", [0.0; 2]),
        UnaryOp::Relu6 => ("relu6", [0.0; 2]),
        UnaryOp::LeakyRelu(slope) => ("leaky_relu", [slope, 0.0]),
        UnaryOp::Sigmoid => ("sigmoid", [0.0; 2]),
        UnaryOp::Tanh => ("tanh", [0.0; 2]),
        UnaryOp::Silu => ("silu", [0.0; 2]),
        UnaryOp::Gelu => ("gelu", [0.0; 2]),
        UnaryOp::GeluTanh => ("gelu_tanh", [0.0; 2]),
        UnaryOp::QuickGelu => ("quick_gelu", [0.0; 2]),
        UnaryOp::Exp => ("exp", [0.0; 2]),
        UnaryOp::Clamp { low, high } => ("clamp", [low, high]),
    }
}

fn apply(gpu: &Gpu, name: &str, [p, q]: [f64; 2], x: &Slice) -> Result<Slice> {
    check_float("unary", x.dtype())?;
    let y = gpu.unwritten(x.dtype(), x.len())?;
    launch(gpu, &ELEMENTWISE, &format!("{name}_{}", x.dtype()), over(x.len(), pack(&[x.dtype()])))
        .slice(x)
        .slice(&y)
        .number(p)
        .number(q)
        .number(x.len() as i64)
        .run()?;
    Ok(y)
}

/// Computes f(x).
///
/// # Errors
/// If the elements are not floats.
pub fn unary(gpu: &Gpu, op: UnaryOp, x: &Slice) -> Result<Slice> {
    let (name, parameters) = parameters(op);
    apply(gpu, name, parameters, x)
}

/// Computes factor·x + addend.
///
/// # Errors
/// If the elements are not floats.
pub fn affine(gpu: &Gpu, x: &Slice, factor: f64, addend: f64) -> Result<Slice> {
    apply(gpu, "affine", [factor, addend], x)
}

/// Computes −x.
///
/// # Errors
/// If the elements are not floats.
pub fn neg(gpu: &Gpu, x: &Slice) -> Result<Slice> {
    apply(gpu, "neg", [0.0; 2], x)
}

/// Computes f′(x)·dy of dy's type, where `y` is f(x). If the derivative follows from the output, `x` is not read.
///
/// # Errors
/// If lengths differ, or the gradient is neither of x's type nor of its compute type.
pub fn unary_backward(gpu: &Gpu, op: UnaryOp, x: &Slice, y: &Slice, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "unary_backward";
    let (name, [p, q]) = parameters(op);
    super::grid::check_type(FUNCTION, "y", y, x.dtype())?;
    for (argument, slice) in [("x", x), ("y", y)] {
        check_len(FUNCTION, argument, slice, dy.len())?;
    }
    let suffix = backward_suffix(FUNCTION, x.dtype(), dy.dtype())?;
    let dx = gpu.unwritten(dy.dtype(), dy.len())?;
    launch(
        gpu,
        &ELEMENTWISE,
        &format!("{name}_backward_{suffix}"),
        over(dy.len(), pack(&[x.dtype(), dy.dtype()])),
    )
    .slice(x)
    .slice(y)
    .slice(dy)
    .slice(&dx)
    .number(p)
    .number(q)
    .number(dy.len() as i64)
    .run()?;
    Ok(dx)
}
