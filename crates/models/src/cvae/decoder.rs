//! The decoder: latent vectors and texts to images.

use std::sync::Arc;

use phalanx_tensor::nn::{Conv2d, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::CvaeConfig;
use super::stage::{Resize, Stage};
use crate::run_block::run_block;

/// Maps latent vector and text to the smallest feature map.
#[derive(Debug)]
struct Entry {
    name: String,
    hidden: Linear,
    fc: Linear,
    channels: usize,
    size: usize,
}

impl Block for Entry {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let batch = inputs[0].dims()[0];
        let both = ops::cat(tape, &[&inputs[0], &inputs[1]], 1)?;
        let hidden = ops::silu(tape, &self.hidden.forward(tape, &both)?)?;
        let x = self.fc.forward(tape, &hidden)?;
        Ok(vec![ops::reshape(tape, &x, (batch, self.channels, self.size, self.size))?])
    }
}

/// The last convolution, to colours, independent of the text. It is linear: after a saturating function, pixels of a
/// white or black background have no gradient, so objects on it are never learnt.
#[derive(Debug)]
struct Exit {
    name: String,
    conv: Conv2d,
}

impl Block for Exit {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.conv.forward(tape, &inputs[0])?])
    }
}

#[derive(Debug, Clone)]
pub(super) struct Decoder {
    /// Each block takes the output of the one before, the first the latent vector, and the text.
    pub(super) blocks: Vec<Arc<dyn Block>>,
}

impl Decoder {
    pub(super) fn new(scope: &Scope, config: &CvaeConfig, bottom: usize) -> Result<Self> {
        let mut channels = config.widths.last().copied().unwrap_or(1);
        let first = scope.pp("entry").block();
        let hidden = 2 * (config.latent + config.text_dim);
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        blocks.push(Arc::new(Entry {
            name: first.block_name().to_owned(),
            hidden: Linear::new(&first.pp("hidden"), config.latent + config.text_dim, hidden)?,
            fc: Linear::new(&first.pp("fc"), hidden, channels * bottom * bottom)?,
            channels,
            size: bottom,
        }));
        // One stage for each halving of the encoder; the last keeps the encoder's first width.
        let outputs = config.widths.iter().rev().skip(1).chain(config.widths.first());
        for (index, &width) in outputs.enumerate() {
            let scope = scope.pp("stages").pp(index);
            blocks.push(Arc::new(Stage::new(&scope, channels, width, config.text_dim, Resize::Double)?));
            channels = width;
        }
        let last = scope.pp("exit").block();
        let conv = Conv2d::new(&last.pp("conv"), channels, 3, 3, Conv2dOptions::new(1, 1))?;
        blocks.push(Arc::new(Exit { name: last.block_name().to_owned(), conv }));
        Ok(Self { blocks })
    }

    pub(super) fn forward(&self, tape: &Tape, latent: &Value, text: &Value) -> Result<Value> {
        let mut x = latent.clone();
        for block in &self.blocks {
            x = run_block(tape, block, &[x, text.clone()])?;
        }
        Ok(x)
    }
}
