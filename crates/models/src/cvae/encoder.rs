//! Images and text to a latent distribution.

use std::sync::Arc;

use phalanx_tensor::nn::{Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value};

use super::CvaeConfig;
use super::film::Film;

/// A strided 3×3 convolution, group norm, modulation by the text, leaky ReLU.
#[derive(Debug)]
struct Stage {
    name: String,
    conv: Conv2d,
    norm: GroupNorm,
    film: Film,
}

impl Block for Stage {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.norm.forward(tape, &self.conv.forward(tape, &inputs[0])?)?;
        let x = self.film.forward(tape, &x, &inputs[1])?;
        Ok(vec![ops::leaky_relu(tape, &x, 0.1)?])
    }
}

/// The flattened map and the text to mean and log-variance.
#[derive(Debug)]
struct Head {
    name: String,
    mu: Linear,
    logvar: Linear,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let batch = inputs[0].dims()[0];
        let rest = inputs[0].shape().elem_count() / batch.max(1);
        let flat = ops::reshape(tape, &inputs[0], (batch, rest))?;
        let all = ops::cat(tape, &[&flat, &inputs[1]], 1)?;
        Ok(vec![self.mu.forward(tape, &all)?, self.logvar.forward(tape, &all)?])
    }
}

#[derive(Debug, Clone)]
pub(super) struct Encoder {
    /// Each takes what the one before gave, the first the images, and the text; the last gives mean and log-variance.
    pub(super) blocks: Vec<Arc<dyn Block>>,
}

impl Encoder {
    pub(super) fn new(scope: &Scope, config: &CvaeConfig, bottom: usize) -> Result<Self> {
        let mut channels = 3;
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        for (index, &width) in config.widths.iter().enumerate() {
            let scope = scope.pp("stages").pp(index).block();
            blocks.push(Arc::new(Stage {
                name: scope.block_name().to_owned(),
                conv: Conv2d::new(&scope.pp("conv"), channels, width, 3, Conv2dOptions::new(2, 1))?,
                norm: GroupNorm::new(&scope.pp("norm"), crate::groups_for(width), width, 1e-5)?,
                film: Film::new(&scope.pp("film"), config.text_dim, width)?,
            }));
            channels = width;
        }
        let scope = scope.pp("head").block();
        let inputs = channels * bottom * bottom + config.text_dim;
        blocks.push(Arc::new(Head {
            name: scope.block_name().to_owned(),
            mu: Linear::new(&scope.pp("fc_mu"), inputs, config.latent)?,
            logvar: Linear::new(&scope.pp("fc_logvar"), inputs, config.latent)?,
        }));
        Ok(Self { blocks })
    }

    pub(super) fn forward(&self, tape: &Tape, images: &Value, text: &Value) -> Result<(Value, Value)> {
        let mut both = vec![images.clone()];
        for block in &self.blocks {
            both = tape.run(block, &[super::joint::single(both)?, text.clone()])?;
        }
        if both.len() < 2 {
            let problem = "the last block of the encoder must give mean and log-variance";
            return Err(TensorError::Backward(problem.into()));
        }
        let logvar = super::joint::single(both.split_off(1))?;
        Ok((super::joint::single(both)?, logvar))
    }
}
