//! Segments: any candle code as one node, differentiated by candle itself.

use candle_core::{Tensor, Var};

use super::{Tape, Value};
use crate::Result;
use crate::storage::{cast, wide};

impl Tape {
    /// A value's tensor in the type that is computed in. candle's graph is one of host tensors.
    fn computed(&self, value: &Value) -> Result<Tensor> {
        let tensor = value.host("segment")?;
        cast(self.context(), &tensor, wide(tensor.dtype()))
    }

    /// Runs candle code as one node of the tape.
    ///
    /// candle knows no mixed precision: inputs of 16 bits are widened, and the segment computes in f32 and gives f32, which
    /// the products after it round.
    ///
    /// `run` gets the inputs' tensors and returns one tensor, using any candle operations that candle can
    /// differentiate. While recording, the inputs that need gradients are candle variables and candle's own
    /// graph of this segment is kept until backward passes it. Beware of candle operations without a backward,
    /// which cut gradients silently (`candle_nn::LayerNorm` and `softmax_last_dim` among them); to be safe,
    /// an input that needs a gradient and gets none from candle is an error.
    ///
    /// # Errors
    /// candle's, and [`crate::TensorError::Backward`] if candle's graph does not reach an input.
    pub fn segment(
        &self,
        inputs: &[&Value],
        run: impl FnOnce(&[Tensor]) -> candle_core::Result<Tensor>,
    ) -> Result<Value> {
        let recorded = self.records() && inputs.iter().any(|value| value.needs_grad());
        if !recorded {
            let tensors = inputs.iter().map(|value| self.computed(value)).collect::<Result<Vec<_>>>()?;
            return Ok(Value::constant(run(&tensors)?.detach()));
        }
        let mut variables = Vec::with_capacity(inputs.len());
        let mut tensors = Vec::with_capacity(inputs.len());
        for value in inputs {
            let tensor = self.computed(value)?;
            if value.needs_grad() {
                // candle's copy of a view would keep all that the view is a part of.
                let variable = Var::from_tensor(&tensor.force_contiguous()?)?;
                tensors.push(variable.as_tensor().clone());
                variables.push(Some(variable));
            } else {
                tensors.push(tensor);
                variables.push(None);
            }
        }
        let output = run(&tensors)?;
        drop(tensors);
        let value = output.detach();
        self.push("segment", inputs, value, move |_, grad, grads| {
            // candle differentiates scalars only to ones; the product with the gradient makes the scalar
            // whose derivative is the vector-Jacobian product.
            let scalar = (output * grad.host("segment")?)?.sum_all()?;
            let mut store = scalar.backward()?;
            for (index, variable) in variables.iter().enumerate() {
                let Some(variable) = variable else { continue };
                let Some(grad) = store.remove(variable.as_tensor()) else {
                    let problem = format!("candle's graph of this segment does not reach input {index}: some operation in it has no backward, or does not use it");
                    return Err(crate::TensorError::Backward(problem));
                };
                grads.share(index, grad.detach())?;
            }
            Ok(())
        })
    }
}
