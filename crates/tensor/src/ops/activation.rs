//! Elementwise functions.

use crate::backend::Array;
use crate::tape::{Grads, Op, PlacementRule, SavedValue, Tape, Value};
use crate::{Context, Result};

pub use crate::backend::UnaryOp;

/// Applies an elementwise function.
///
/// # Errors
/// If the element type is not supported.
pub fn unary(tape: &Tape, x: &Value, op: UnaryOp) -> Result<Value> {
    let input = x.contiguous_part()?;
    let output = input.backend(tape.context()).unary(op, &input)?;
    // Backward reads either the input or, if the derivative follows from it, the output. Only that one is saved.
    let from_output = op.derivative_from_output();
    let saved = if from_output { SavedValue::of(output.clone()) } else { x.save() };
    let backward = move |tape: &Tape, grad: &Array, grads: &mut Grads<'_>| {
        let (grad, saved) = (grad.contiguous()?, saved.contiguous()?);
        grads.add(0, grad.backend(tape.context()).unary_backward(op, &saved, &saved, &grad)?)
    };
    let rule = PlacementRule::Elementwise;
    if from_output {
        return tape.push_by(rule, Op::Unary(op), &[x], output, backward);
    }
    let again = x.save();
    let compute = move |context: &Context| {
        let input = again.contiguous()?;
        Ok(input.backend(context).unary(op, &input)?)
    };
    tape.push_remade((Op::Unary(op), rule), &[x], output, compute, backward)
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
    /// Computes max(x, 0).
    relu => UnaryOp::Relu;
    /// Computes max(x, 0)² (So et al. 2021).
    relu_squared => UnaryOp::ReluSquared;
    /// Computes min(max(x, 0), 6).
    relu6 => UnaryOp::Relu6;
    /// Computes 1/(1 + e⁻ˣ).
    sigmoid => UnaryOp::Sigmoid;
    /// Computes the hyperbolic tangent.
    tanh => UnaryOp::Tanh;
    /// Computes x·σ(x) (Ramachandran et al. 2017).
    silu => UnaryOp::Silu;
    /// Computes x·Φ(x), by the exact error function (Hendrycks & Gimpel 2016).
    gelu => UnaryOp::Gelu;
    /// Computes x·(1 + tanh(√(2/π)·(x + 0.044715x³)))/2, as in the published GPT-2 (Hendrycks & Gimpel 2016).
    gelu_tanh => UnaryOp::GeluTanh;
    /// Computes x·σ(1.702x), as in openai/CLIP.
    quick_gelu => UnaryOp::QuickGelu;
    /// Computes eˣ.
    exp => UnaryOp::Exp;
}

/// Computes x where it is positive, and `slope`·x elsewhere.
///
/// # Errors
/// If the element type is not supported.
pub fn leaky_relu(tape: &Tape, x: &Value, slope: f64) -> Result<Value> {
    unary(tape, x, UnaryOp::LeakyRelu(slope))
}

/// Computes min(max(x, low), high). The derivative is 1 between the bounds and at them, and 0 beyond.
///
/// # Errors
/// If the element type is not supported.
pub fn clamp(tape: &Tape, x: &Value, low: f64, high: f64) -> Result<Value> {
    unary(tape, x, UnaryOp::Clamp { low, high })
}
