//! Cross-entropy of logits with class labels.

use candle_core::WithDType as _;
use phalanx_kernels::{cross_entropy_rows_backward, cross_entropy_rows_forward};

use super::Over;
use crate::storage::{Contiguous, dispatch, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// −log softmax(logits) at the label, averaged; `logits` is [N, K], `labels` N classes below K.
///
/// With `label_smoothing` s the target is 1 − s on the label plus s/K everywhere, as in PyTorch.
///
/// # Errors
/// If the shapes do not go together, a label is out of range (named with its row), or s is not in [0, 1).
pub fn cross_entropy(
    tape: &Tape,
    logits: &Value,
    labels: &[u32],
    label_smoothing: f64,
    over: Over,
) -> Result<Value> {
    const OP: &str = "cross_entropy";
    let &[batch, classes] = logits.dims() else {
        return Err(TensorError::shape(OP, format!("expected logits [N, K], not {:?}", logits.shape())));
    };
    if labels.len() != batch {
        return Err(TensorError::shape(OP, format!("{} labels for {batch} rows of logits", labels.len())));
    }
    if !(0.0..1.0).contains(&label_smoothing) {
        let (value, expected) = (label_smoothing.to_string(), "expected 0 ≤ s < 1");
        return Err(TensorError::Argument { name: "label_smoothing", value, expected });
    }
    let factor = over.factor(batch);
    let input = logits.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let read = Contiguous::by(OP, tape.context(), &input)?;
    let (loss, softmax) = dispatch!(OP, dtype, T => {
        let x = read.slice::<T>()?;
        let mut losses = vec![T::default(); batch];
        let mut softmax = vec![T::default(); x.len()];
        cross_entropy_rows_forward(tape.context(), classes, x, labels, label_smoothing, &mut losses, &mut softmax)?;
        let total: f64 = losses.iter().map(|loss| loss.to_f64()).sum();
        let loss = tensor_from(vec![T::from_f64(total * factor)], ())?;
        Ok::<_, TensorError>((loss, tensor_from(softmax, input.shape().clone())?))
    })?;
    let labels = labels.to_vec();
    tape.push(OP, &[logits], loss, move |tape, grad, grads| { let grad = &grad.tensor()?;
        let read = Contiguous::by(OP, tape.context(), &softmax)?;
        let grad = grad.to_dtype(candle_core::DType::F64)?.to_scalar::<f64>()?;
        dispatch!(OP, dtype, T => {
            let softmax_values = read.slice::<T>()?;
            let mut dx = vec![T::default(); softmax_values.len()];
            cross_entropy_rows_backward(classes, softmax_values, &labels, label_smoothing, factor * grad, &mut dx)?;
            grads.add(0, tensor_from(dx, softmax.shape().clone())?)
        })
    })
}
