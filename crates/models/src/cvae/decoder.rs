//! A latent vector and text to images.

use std::sync::Arc;

use phalanx_tensor::nn::{Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::CvaeConfig;
use super::film::Film;

/// Latent vector and text to the smallest map.
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

/// Doubling, a 3×3 convolution, group norm, modulation by the text, leaky ReLU.
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
        let x = ops::upsample_nearest2d(tape, &inputs[0], 2)?;
        let x = self.norm.forward(tape, &self.conv.forward(tape, &x)?)?;
        let x = self.film.forward(tape, &x, &inputs[1])?;
        Ok(vec![ops::leaky_relu(tape, &x, 0.1)?])
    }
}

/// The last convolution, to colours, whatever the text. Linear on purpose: behind a saturating function the pixels of a white or black
/// background have no gradient left, and an object in front of it is never learnt.
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
    /// Each takes what the one before gave, the first the latent vector, and the text.
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
        // One stage a halving of the encoder; the last keeps the encoder's first width.
        let outputs = config.widths.iter().rev().skip(1).chain(config.widths.first());
        for (index, &width) in outputs.enumerate() {
            let scope = scope.pp("stages").pp(index).block();
            blocks.push(Arc::new(Stage {
                name: scope.block_name().to_owned(),
                conv: Conv2d::new(&scope.pp("conv"), channels, width, 3, Conv2dOptions::new(1, 1))?,
                norm: GroupNorm::new(&scope.pp("norm"), crate::groups_for(width), width, 1e-5)?,
                film: Film::new(&scope.pp("film"), config.text_dim, width)?,
            }));
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
            x = super::joint::single(tape.run(block, &[x, text.clone()])?)?;
        }
        Ok(x)
    }
}
