//! Losses of elements against targets: L1, squared error, binary cross-entropy.

use candle_core::WithDType as _;

use super::Over;
use crate::storage::{Contiguous, dispatch, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// The mean over a sample's elements of `f`, then over samples; `df` is f's derivative by the first argument.
fn elementwise(
    op: &'static str,
    tape: &Tape,
    x: &Value,
    target: &Value,
    over: Over,
    f: impl Fn(f64, f64) -> f64,
    df: impl Fn(f64, f64) -> f64 + 'static,
) -> Result<Value> {
    if x.shape() != target.shape() {
        return Err(TensorError::unequal(op, x.shape(), target.shape()));
    }
    if target.needs_grad() {
        let problem = "the target needs a gradient, which this loss does not give; detach it";
        return Err(TensorError::Backward(format!("{op}: {problem}")));
    }
    let batch = x.dims().first().copied().unwrap_or(1);
    let per_sample = x.shape().elem_count() / batch.max(1);
    let factor = over.factor(batch) / per_sample.max(1) as f64;
    let (x_t, t_t) = (x.tensor()?.contiguous()?, target.tensor()?.contiguous()?);
    let dtype = x_t.dtype();
    let loss = {
        let (x, t) = (Contiguous::by(op, tape.context(), &x_t)?, Contiguous::by(op, tape.context(), &t_t)?);
        dispatch!(op, dtype, T => {
            let pairs = x.slice::<T>()?.iter().zip(t.slice::<T>()?);
            let total: f64 = pairs.map(|(x, t)| f(x.to_f64(), t.to_f64())).sum();
            tensor_from(vec![T::from_f64(total * factor)], ())
        })?
    };
    tape.push(op, &[x], loss, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.to_dtype(candle_core::DType::F64)?.to_scalar::<f64>()? * factor;
        let (x, t) = (Contiguous::by(op, tape.context(), &x_t)?, Contiguous::by(op, tape.context(), &t_t)?);
        dispatch!(op, dtype, T => {
            let pairs = x.slice::<T>()?.iter().zip(t.slice::<T>()?);
            let dx = pairs.map(|(x, t)| T::from_f64(df(x.to_f64(), t.to_f64()) * grad)).collect::<Vec<T>>();
            grads.add(0, tensor_from(dx, x_t.shape().clone())?)
        })
    })
}

/// |x − target|, the mean over the elements of a sample, then over samples. At 0 the derivative is 0.
///
/// # Errors
/// If the shapes differ.
pub fn l1(tape: &Tape, x: &Value, target: &Value, over: Over) -> Result<Value> {
    let sign = |x: f64, t: f64| if x == t { 0.0 } else { (x - t).signum() };
    elementwise("l1", tape, x, target, over, |x, t| (x - t).abs(), sign)
}

/// |x − target| with its tip rounded off: (x − target)²/(2·beta) within `beta` of the target and
/// |x − target| − beta/2 beyond, the mean over the elements of a sample, then over samples
/// (`torch.nn.SmoothL1Loss`); 0 is the plain L1 loss. The derivative of plain L1 is ±1 however close an element
/// is, so that the many elements that are nearly right drown the few that are wrong.
///
/// # Errors
/// If the shapes differ, or `beta` is negative or not finite.
pub fn smooth_l1(tape: &Tape, x: &Value, target: &Value, beta: f64, over: Over) -> Result<Value> {
    if !(beta.is_finite() && beta >= 0.0) {
        let (value, expected) = (beta.to_string(), "expected a finite number, at least 0");
        return Err(TensorError::Argument { name: "beta", value, expected });
    }
    if beta == 0.0 {
        return l1(tape, x, target, over);
    }
    let f = move |x: f64, t: f64| {
        let off = (x - t).abs();
        if off < beta { 0.5 * off * off / beta } else { off - 0.5 * beta }
    };
    let df = move |x: f64, t: f64| ((x - t) / beta).clamp(-1.0, 1.0);
    elementwise("smooth_l1", tape, x, target, over, f, df)
}

/// (x − target)², the mean over the elements of a sample, then over samples.
///
/// # Errors
/// If the shapes differ.
pub fn mse(tape: &Tape, x: &Value, target: &Value, over: Over) -> Result<Value> {
    elementwise("mse", tape, x, target, over, |x, t| (x - t) * (x - t), |x, t| 2.0 * (x - t))
}

/// The cross-entropy of targets in [0, 1] with σ(logits), as max(x, 0) − x·t + log(1 + e^−|x|), which is finite
/// for any finite logit; the mean over the elements of a sample, then over samples.
///
/// # Errors
/// If the shapes differ.
pub fn bce_with_logits(tape: &Tape, logits: &Value, targets: &Value, over: Over) -> Result<Value> {
    let f = |x: f64, t: f64| x.max(0.0) - x * t + (-x.abs()).exp().ln_1p();
    // The sigmoid written so that e^x never overflows.
    let df =
        |x: f64, t: f64| if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) - t } else { x.exp() / (1.0 + x.exp()) - t };
    elementwise("bce_with_logits", tape, logits, targets, over, f, df)
}
