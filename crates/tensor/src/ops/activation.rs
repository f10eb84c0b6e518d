//! Elementwise functions.

use phalanx_kernels::{unary_backward, unary_forward};

use crate::Result;
use crate::storage::unwritten;
use crate::storage::{Contiguous, dispatch, stored, tensor_from};
use crate::tape::{Tape, Value};

pub use phalanx_kernels::UnaryOp;

/// Applies an elementwise function.
///
/// # Errors
/// If the element type is not supported.
pub fn unary(tape: &Tape, x: &Value, op: UnaryOp) -> Result<Value> {
    const OP: &str = "unary";
    let input = x.tensor()?.contiguous()?;
    let output = {
        let read = Contiguous::by(OP, tape.context(), &input)?;
        dispatch!(OP, input.dtype(), T => {
            let x = read.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            unary_forward(tape.context(), op, x, &mut y)?;
            stored(tape.context(), y, input.shape().clone(), input.dtype())
        })?
    };
    // A function whose derivative follows from its output does not keep its input.
    let (x_saved, y_saved) =
        if op.derivative_from_output() { (output.clone(), output.clone()) } else { (input, output.clone()) };
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.contiguous()?;
        let (x, y, dy) = (
            Contiguous::by(OP, tape.context(), &x_saved)?,
            Contiguous::by(OP, tape.context(), &y_saved)?,
            Contiguous::by(OP, tape.context(), &grad)?,
        );
        dispatch!(OP, grad.dtype(), T => {
            let dy = dy.slice::<T>()?;
            let mut dx = unwritten::<T>(dy.len());
            unary_backward(tape.context(), op, x.slice::<T>()?, y.slice::<T>()?, dy, &mut dx)?;
            grads.add(0, tensor_from(dx, grad.shape().clone())?)
        })
    })
}

macro_rules! named {
    ($($(#[$doc:meta])* $name:ident => $op:expr;)*) => {
        $($(#[$doc])*
        ///
        /// # Errors
        /// If the element type is not supported.
        pub fn $name(tape: &Tape, x: &Value) -> Result<Value> {
            unary(tape, x, $op)
        })*
    };
}

named! {
    /// max(x, 0).
    relu => UnaryOp::Relu;
    /// min(max(x, 0), 6).
    relu6 => UnaryOp::Relu6;
    /// 1/(1 + e⁻ˣ).
    sigmoid => UnaryOp::Sigmoid;
    /// The hyperbolic tangent.
    tanh => UnaryOp::Tanh;
    /// x·σ(x) (Ramachandran et al. 2017).
    silu => UnaryOp::Silu;
    /// x·Φ(x), by the exact error function (Hendrycks & Gimpel 2016).
    gelu => UnaryOp::Gelu;
    /// x·σ(1.702x), as openai/CLIP uses it.
    quick_gelu => UnaryOp::QuickGelu;
    /// eˣ.
    exp => UnaryOp::Exp;
}

/// x where positive, `slope`·x elsewhere.
///
/// # Errors
/// If the element type is not supported.
pub fn leaky_relu(tape: &Tape, x: &Value, slope: f64) -> Result<Value> {
    unary(tape, x, UnaryOp::LeakyRelu(slope))
}
