//! The encoder: images and texts to a latent distribution.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use super::CvaeConfig;
use super::stage::{Resize, Stage};
use crate::run_block::run_block;

/// Maps the flattened feature map and the text to mean and log-variance.
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
    /// Each block takes the output of the one before, the first the images, and the text; the last returns mean and
    /// log-variance.
    blocks: Vec<Arc<dyn Block>>,
}

impl Encoder {
    pub(super) fn new(scope: &Scope, config: &CvaeConfig, bottom: usize) -> Result<Self> {
        let mut channels = 3;
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        for (index, &width) in config.widths.iter().enumerate() {
            let scope = scope.pp("stages").pp(index);
            blocks.push(Arc::new(Stage::new(&scope, channels, width, config.text_dim, Resize::Half)?));
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

    /// Returns the stages and the head, in order.
    pub(super) fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    pub(super) fn forward(&self, tape: &Tape, images: &Value, text: &Value) -> Result<(Value, Value)> {
        let absent = || TensorError::Backward("the encoder's head must return mean and log-variance".into());
        let (head, stages) = self.blocks.split_last().ok_or_else(absent)?;
        let mut x = images.clone();
        for stage in stages {
            x = run_block(tape, stage, &[x, text.clone()])?;
        }
        let mut outputs = tape.run(head, &[x, text.clone()])?;
        let (logvar, mu) = (outputs.pop().ok_or_else(absent)?, outputs.pop().ok_or_else(absent)?);
        Ok((mu, logvar))
    }
}
