//! Segments: any candle code as one node, differentiated by candle itself.

use candle_core::{Tensor, Var};

use super::{Tape, Value};
use crate::Result;
use phalanx_array::{cast, wide};

impl Tape {
    /// Returns a value's tensor in the type of the arithmetic. candle's graph has host tensors.
    fn computed(&self, value: &Value) -> Result<Tensor> {
        let tensor = value.host("segment")?;
        Ok(cast(self.context(), &tensor, wide(tensor.dtype()))?)
    }

    /// Runs candle code as one node of the tape.
    ///
    /// candle has no mixed precision: inputs of 16 bits are widened, the segment computes in f32 and returns f32, and
    /// later products round it.
    ///
    /// `run` gets the inputs' tensors and returns one tensor, using any candle operations that candle can
    /// differentiate. While recording, the inputs that need gradients are candle variables, and candle's graph of
    /// this segment is kept until backward passes it. Some candle operations have no backward and cut gradients
    /// silently (`candle_nn::LayerNorm` and `softmax_last_dim` among them). So an input that needs a gradient and
    /// gets none from candle is an error.
    ///
    /// # Errors
    /// Errors of candle, and [`crate::TensorError::Backward`] if candle's graph does not reach an input.
    pub fn segment(
        &self,
        inputs: &[&Value],
        run: impl FnOnce(&[Tensor]) -> candle_core::Result<Tensor>,
    ) -> Result<Value> {
        let recorded = self.records() && inputs.iter().any(|value| value.needs_grad());
        if !recorded {
            let tensors = inputs.iter().map(|value| self.computed(value)).collect::<Result<Vec<_>>>()?;
            return self.push("segment", inputs, run(&tensors)?.detach(), |_, _, _| Ok(()));
        }
        let mut variables = Vec::with_capacity(inputs.len());
        let mut tensors = Vec::with_capacity(inputs.len());
        for value in inputs {
            let tensor = self.computed(value)?;
            if value.needs_grad() {
                // candle's copy of a view would keep the whole storage.
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
            // candle differentiates scalars only. The derivative of the sum of output · gradient is the
            // vector-Jacobian product.
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
