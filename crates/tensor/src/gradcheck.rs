//! Gradient checks by finite differences.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use crate::Key;
use crate::tape::{Session, Tape, Value};
use crate::{Context, Result, TensorError};

/// Compares the gradients of `f` with central differences, for every element of every input.
///
/// The inputs must be f64. `f` may return a value of any shape; it is multiplied with fixed pseudo-random weights and
/// summed, so that every element counts. `f` must be deterministic. Returns the largest difference relative to the
/// largest gradient of its input (at least 1e-3).
///
/// # Errors
/// Errors of `f`, and if an input is not f64.
pub fn check_gradients(inputs: &[Tensor], f: impl Fn(&Tape, &[Value]) -> Result<Value>) -> Result<f64> {
    const STEP: f64 = 1e-5;
    if let Some(input) = inputs.iter().find(|input| input.dtype() != DType::F64) {
        return Err(TensorError::dtype("check_gradients", input.dtype()));
    }
    let context = Arc::new(Context::new(1));
    let session = || Session::training(context.clone(), Key::new(0));
    let weights_for = |output: &Value| -> Result<Tensor> {
        let mut weights = vec![0.0; output.shape().elem_count()];
        Key::new(99).stream("gradcheck").normal(0, &mut weights);
        Ok(Tensor::from_vec(weights, output.shape().clone(), &Device::Cpu)?)
    };
    let evaluate = |inputs: &[Tensor]| -> Result<f64> {
        let tape = Tape::forward_only(session());
        let values: Vec<_> = inputs.iter().cloned().map(Value::constant).collect();
        let output = f(&tape, &values)?;
        let product = (output.tensor()?.contiguous()? * weights_for(&output)?)?;
        Ok(product.sum_all()?.to_scalar::<f64>()?)
    };

    let tape = Tape::recording(session());
    let leaves: Vec<_> = inputs.iter().map(|input| tape.leaf(input.clone())).collect();
    let output = f(&tape, &leaves)?;
    let seed = weights_for(&output)?;
    tape.backward_from([(&output, seed)])?;

    let mut worst = 0.0_f64;
    for (index, leaf) in leaves.iter().enumerate() {
        let analytic = match tape.leaf_grad(leaf) {
            Some(grad) => grad.tensor()?.flatten_all()?.to_vec1::<f64>()?,
            None => vec![0.0; inputs[index].elem_count()],
        };
        let base = inputs[index].flatten_all()?.to_vec1::<f64>()?;
        let scale = analytic.iter().fold(1e-3_f64, |m, g| m.max(g.abs()));
        for at in 0..base.len() {
            let moved = |by: f64| -> Result<f64> {
                let mut values = base.clone();
                values[at] += by;
                let mut all = inputs.to_vec();
                all[index] = Tensor::from_vec(values, inputs[index].shape().clone(), &Device::Cpu)?;
                evaluate(&all)
            };
            let numeric = (moved(STEP)? - moved(-STEP)?) / (2.0 * STEP);
            worst = worst.max((numeric - analytic[at]).abs() / scale);
        }
    }
    Ok(worst)
}
