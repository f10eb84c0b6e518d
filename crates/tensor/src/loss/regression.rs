//! Losses of elements against targets: L1, squared error, binary cross-entropy.

use super::LossDivisor;
use crate::backend::{Array, ElementLoss, ElementLossInputs};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Averages a loss over a sample's elements, then over samples.
fn elementwise(
    tape: &Tape,
    loss: ElementLoss,
    x: &Value,
    target: &Value,
    over: LossDivisor,
) -> Result<Value> {
    let op = loss.name();
    if x.shape() != target.shape() {
        return Err(TensorError::unequal(op, x.shape(), target.shape()));
    }
    if target.needs_grad() {
        let problem = "this loss has no gradient for its target; detach the target";
        return Err(TensorError::Backward(format!("{op}: {problem}")));
    }
    let batch = x.dims().first().copied().unwrap_or(1);
    let per_sample = x.shape().elem_count() / batch.max(1);
    let factor = over.factor(batch) / per_sample.max(1) as f64;
    let inputs = [x, target];
    let (input, target) = (x.contiguous()?, target.contiguous()?);
    let of = ElementLossInputs { loss, x: &input, target: &target, factor };
    let output = Array::backend_of(tape.context(), [&input, &target]).element_loss(of)?;
    tape.push(op, &inputs, output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        let of = ElementLossInputs { loss, x: &input, target: &target, factor };
        grads.add(0, backend.element_loss_backward(of, grad)?)
    })
}

/// Computes |x − target|, averaged over the elements of a sample, then over samples. At 0 the derivative is 0.
///
/// # Errors
/// If the shapes differ.
pub fn l1(tape: &Tape, x: &Value, target: &Value, over: LossDivisor) -> Result<Value> {
    elementwise(tape, ElementLoss::L1, x, target, over)
}

/// Computes the smooth L1 loss (`torch.nn.SmoothL1Loss`), averaged over the elements of a sample, then over samples.
///
/// It is (x − target)²/(2·beta) within `beta` of the target, and |x − target| − beta/2 beyond; `beta` 0 is the plain L1 loss.
/// The derivative of plain L1 is ±1 at any distance, and many small errors outweigh a few large ones.
///
/// # Errors
/// If the shapes differ, or `beta` is negative or not finite.
pub fn smooth_l1(tape: &Tape, x: &Value, target: &Value, beta: f64, over: LossDivisor) -> Result<Value> {
    if !(beta.is_finite() && beta >= 0.0) {
        let (value, expected) = (beta.to_string(), "expected a finite number, at least 0");
        return Err(TensorError::Argument { name: "beta", value, expected });
    }
    if beta == 0.0 {
        return l1(tape, x, target, over);
    }
    elementwise(tape, ElementLoss::SmoothL1 { beta }, x, target, over)
}

/// Computes (x − target)², averaged over the elements of a sample, then over samples.
///
/// # Errors
/// If the shapes differ.
pub fn mse(tape: &Tape, x: &Value, target: &Value, over: LossDivisor) -> Result<Value> {
    elementwise(tape, ElementLoss::Mse, x, target, over)
}

/// Computes the cross-entropy of targets in [0, 1] with σ(logits), averaged over the elements of a sample, then over
/// samples. The form max(x, 0) − x·t + log(1 + e^−abs(x)) is finite for any finite logit.
///
/// # Errors
/// If the shapes differ.
pub fn bce_with_logits(tape: &Tape, logits: &Value, targets: &Value, over: LossDivisor) -> Result<Value> {
    elementwise(tape, ElementLoss::BceWithLogits, logits, targets, over)
}
