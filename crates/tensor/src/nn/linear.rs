//! The fully connected layer.

use super::adapter::Adapter;
use crate::init::Init;
use crate::ops::{LinearWeight, WeightLayout};
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Result, ops};

/// A linear layer y = x·Wᵀ + b, as `torch.nn.Linear`: parameters `weight` [O, I] and `bias` `[O]`. Rules of the scope may give it
/// an adapter ([`crate::AdapterRule`]): parameters `lora_A.weight` [r, I] and `lora_B.weight` [O, r].
#[derive(Debug, Clone)]
pub struct Linear {
    weight: Param,
    layout: WeightLayout,
    bias: Option<Param>,
    adapter: Option<Adapter>,
}

impl Linear {
    /// Makes a layer with a bias and PyTorch's initial values (uniform in ±1/√I).
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Self> {
        Self::with_init(scope, inputs, outputs, Init::TorchDefault, Some(Init::TorchBias { fan_in: inputs }))
    }

    /// Makes a layer with given initial values; without a bias if there is none for it.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn with_init(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        Self::with_layout(scope, [inputs, outputs], WeightLayout::OutputsFirst, weight, bias)
    }

    /// As [`Linear::with_init`], with a `weight` of [I, O]: the layer that the published GPT-2 calls Conv1D.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn inputs_first(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        Self::with_layout(scope, [inputs, outputs], WeightLayout::InputsFirst, weight, bias)
    }

    fn with_layout(
        scope: &Scope,
        [inputs, outputs]: [usize; 2],
        layout: WeightLayout,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        let weight = scope.param("weight", &layout.dims(inputs, outputs), weight)?;
        let bias = bias.map(|init| scope.param("bias", outputs, init)).transpose()?;
        let adapter = Adapter::new(scope, [inputs, outputs], layout)?;
        Ok(Self { weight, layout, bias, adapter })
    }

    /// Maps [.., I] to [.., O].
    ///
    /// # Errors
    /// If the last dimension is not I.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let bias = self.bias.as_ref().map(|bias| tape.param(bias)).transpose()?;
        let weight = &tape.param(&self.weight)?;
        let weight = LinearWeight { weight, layout: self.layout, bias: bias.as_ref() };
        let y = ops::linear_by(tape, x, weight)?;
        match &self.adapter {
            Some(adapter) => adapter.add(tape, x, &y),
            None => Ok(y),
        }
    }
}
