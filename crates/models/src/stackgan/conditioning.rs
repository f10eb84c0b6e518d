//! Conditioning augmentation: from a text vector to a distribution of conditions.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

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

/// A fully connected layer and a ReLU, as in the authors' code, so means and log-variances are never negative.
#[derive(Debug, Clone)]
pub struct ConditioningAugmentation {
    layer: Arc<dyn Block>,
    size: usize,
}

/// The layer and its ReLU.
#[derive(Debug)]
struct Layer {
    name: String,
    fc: Linear,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![ops::relu(tape, &self.fc.forward(tape, &inputs[0])?)?])
    }
}

impl ConditioningAugmentation {
    pub(super) fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        let size = config.condition_dim;
        let fc = Linear::with_init(&scope.pp("fc"), config.text_dim, 2 * size, WEIGHT, Some(Init::ZEROS))?;
        let name = scope.block_name().to_owned();
        Ok(Self { layer: Arc::new(Layer { name, fc }), size })
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
