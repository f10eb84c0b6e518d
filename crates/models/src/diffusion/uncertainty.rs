//! The expected error of each noise level, learnt with a network (Karras et al. 2024, EDM2).

use std::sync::Arc;

use candle_core::DType;
use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

use super::layers::sinusoids;

/// The sines and cosines of a timestep.
const FEATURES: usize = 128;

/// The logarithm u of the expected squared error at each timestep: a linear function of sines and cosines, `logvar_linear` in EDM2's code.
///
/// The loss e^(−u)·error + u is least where u is the logarithm of the mean error. Each noise level then has the same share of the
/// gradient, whereas noisy levels, whose error cannot fall, would otherwise have the most of it.
#[derive(Debug, Clone)]
pub struct Uncertainty {
    layer: Arc<dyn Block>,
}

/// The layer as a block.
#[derive(Debug)]
struct Layer {
    name: String,
    linear: Linear,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.linear.forward(tape, &inputs[0])?])
    }
}

impl Uncertainty {
    /// Registers the parameters, which are 0: an expected error of 1 everywhere.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope) -> Result<Self> {
        let scope = scope.pp("logvar_linear").block();
        let linear = Linear::with_init(&scope, FEATURES, 1, Init::ZEROS, Some(Init::ZEROS))?;
        Ok(Self { layer: Arc::new(Layer { name: scope.block_name().to_owned(), linear }) })
    }

    /// Returns u of each timestep, [N, 1].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn forward(&self, tape: &Tape, timesteps: &[f64]) -> Result<Value> {
        let features = sinusoids(tape, timesteps, FEATURES, true, 0.0, DType::F32)?;
        tape.run1(&self.layer, &features)
    }

    /// Returns the difference of a prediction and its target, [N, …], scaled so that its square is e^(−u)·error.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn weigh(tape: &Tape, u: &Value, prediction: &Value, target: &Value) -> Result<Value> {
        let root = ops::exp(tape, &ops::scale(tape, u, -0.5)?)?;
        let mut dims = vec![1; prediction.dims().len()];
        dims[0] = u.dims()[0];
        let root = ops::reshape(tape, &root, dims)?;
        ops::broadcast_mul(tape, &ops::sub(tape, prediction, target)?, &root)
    }
}
