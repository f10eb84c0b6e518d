//! Conditioning augmentation: a text vector becomes a distribution of conditions.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

use super::{StackGanConfig, WEIGHT};

/// The distribution of conditions for some texts, [N, condition_dim] each.
#[derive(Debug, Clone)]
pub struct Condition {
    /// Its mean.
    pub mu: Value,
    /// The logarithm of its variance.
    pub logvar: Value,
}

impl Condition {
    /// mu + noise·e^(logvar/2).
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn sample(&self, tape: &Tape, noise: &Value) -> Result<Value> {
        let std = ops::exp(tape, &ops::scale(tape, &self.logvar, 0.5)?)?;
        ops::add(tape, &self.mu, &ops::mul(tape, &std, noise)?)
    }
}

/// One layer and a ReLU, so that means and logarithms of variances are never negative: the code's way.
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

    /// The distribution for text vectors [N, text_dim].
    ///
    /// # Errors
    /// If the last dimension is another.
    pub fn forward(&self, tape: &Tape, text: &Value) -> Result<Condition> {
        let x = tape.run1(&self.layer, text)?;
        let mu = ops::narrow(tape, &x, 1, 0, self.size)?;
        Ok(Condition { mu, logvar: ops::narrow(tape, &x, 1, self.size, self.size)? })
    }
}
