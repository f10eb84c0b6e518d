//! Losses of weighted samples.

use std::ops::Range;

use super::LossDivisor;
use crate::tape::{Tape, Value};
use crate::{TensorError, ops};

/// Computes the weighted sum of the samples' losses, divided by `sum`, the sum of the weights of the global batch.
///
/// `output` has the samples along its first dimension. `loss` computes the loss of a range of samples from their part
/// of `output`, with the given divisor. It is called once for each run of equal weights, so once for a batch of equal
/// weights, and not for runs of weight 0 if there are others.
///
/// # Errors
/// If there is not one weight a sample, or one is negative or not finite, and errors of `loss`.
pub fn weighted<E: From<TensorError>>(
    tape: &Tape,
    output: &Value,
    weights: &[f32],
    sum: f64,
    mut loss: impl FnMut(&Value, Range<usize>, LossDivisor) -> Result<Value, E>,
) -> Result<Value, E> {
    let samples = output.dims().first().copied().unwrap_or(1);
    if weights.len() != samples {
        let problem = format!("{} weights for {samples} samples", weights.len());
        return Err(TensorError::shape("weighted", problem).into());
    }
    if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0)) {
        let (value, expected) = (weight.to_string(), "expected a finite number, at least 0");
        return Err(TensorError::Argument { name: "weights", value, expected }.into());
    }
    let mut total: Option<Value> = None;
    let mut start = 0;
    for run in weights.chunk_by(|a, b| a == b) {
        let rows = start..start + run.len();
        start = rows.end;
        let whole = rows.len() == samples;
        if run[0] == 0.0 && !whole {
            continue;
        }
        // A divisor of infinity makes the loss and its gradients 0 for weight 0.
        let over = LossDivisor::Sum(if run[0] > 0.0 { sum / f64::from(run[0]) } else { f64::INFINITY });
        let of_run = match whole {
            true => loss(output, rows, over)?,
            false => loss(&ops::narrow(tape, output, 0, rows.start, rows.len())?, rows, over)?,
        };
        total = Some(match total {
            Some(total) => ops::add(tape, &total, &of_run)?,
            None => of_run,
        });
    }
    match total {
        Some(total) => Ok(total),
        // There is no sample.
        None => loss(output, 0..samples, LossDivisor::Batch),
    }
}
