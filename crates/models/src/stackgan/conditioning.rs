//! Conditioning augmentation: from a text vector to a distribution of conditions.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

use crate::names::named;

use super::{StackGanConfig, WEIGHT};

/// The distribution of conditions of texts, [N, condition_dim] each.
#[derive(Debug, Clone)]
pub struct Condition {
    /// The mean.
    pub mu: Value,
    /// The logarithm of the variance.
    pub logvar: Value,
}

impl Condition {
    /// Samples the distribution: mu + noise·e^(logvar/2).
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn sample(&self, tape: &Tape, noise: &Value) -> Result<Value> {
        let std = ops::exp(tape, &ops::scale(tape, &self.logvar, 0.5)?)?;
        ops::add(tape, &self.mu, &ops::mul(tape, &std, noise)?)
    }
}

/// The activation of the layer that computes the distribution of conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditioningActivation {
    /// ReLU, as in StackGAN: means and log-variances are never negative, so the noise has a deviation of at least 1.
    Relu,
    /// A gated linear unit, as in the authors' StackGAN-v2 and in AttnGAN: means of both signs, and noise that can
    /// vanish. The layer has twice as many outputs.
    Glu,
}

impl ConditioningActivation {
    /// All activations.
    pub const ALL: &'static [Self] = &[Self::Relu, Self::Glu];
}

named! {
    ConditioningActivation { Relu = "relu", Glu = "glu" }
}

/// A fully connected layer and its activation: a text vector to a distribution of conditions.
#[derive(Debug, Clone)]
pub struct ConditioningAugmentation {
    layer: Arc<dyn Block>,
    size: usize,
}

/// The layer and its activation.
#[derive(Debug)]
struct Layer {
    name: String,
    fc: Linear,
    activation: ConditioningActivation,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.fc.forward(tape, &inputs[0])?;
        Ok(vec![match self.activation {
            ConditioningActivation::Relu => ops::relu(tape, &x)?,
            ConditioningActivation::Glu => {
                let half = x.dims()[1] / 2;
                let gate = ops::sigmoid(tape, &ops::narrow(tape, &x, 1, half, half)?)?;
                ops::mul(tape, &ops::narrow(tape, &x, 1, 0, half)?, &gate)?
            }
        }])
    }
}

impl ConditioningAugmentation {
    pub(super) fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        let (size, activation) = (config.condition_dim, config.conditioning);
        let outputs = match activation {
            ConditioningActivation::Relu => 2 * size,
            ConditioningActivation::Glu => 4 * size,
        };
        let fc = Linear::with_init(&scope.pp("fc"), config.text_dim, outputs, WEIGHT, Some(Init::ZEROS))?;
        let name = scope.block_name().to_owned();
        Ok(Self { layer: Arc::new(Layer { name, fc, activation }), size })
    }

    /// Computes the distribution of text vectors [N, text_dim].
    ///
    /// # Errors
    /// If the last dimension differs.
    pub fn forward(&self, tape: &Tape, text: &Value) -> Result<Condition> {
        let x = tape.run1(&self.layer, text)?;
        let mu = ops::narrow(tape, &x, 1, 0, self.size)?;
        Ok(Condition { mu, logvar: ops::narrow(tape, &x, 1, self.size, self.size)? })
    }
}
