//! The generator of the first stage.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::{Condition, ConditioningAugmentation, NORM_WEIGHT, StackGanConfig, WEIGHT};

/// Twice the size and half the channels: nearest neighbours, 3×3 convolution, norm, ReLU.
#[derive(Debug)]
struct Upsample {
    name: String,
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Upsample {
    fn new(scope: &Scope, inputs: usize) -> Result<Self> {
        let scope = scope.block();
        let options = Conv2dOptions::new(1, 1);
        Ok(Self {
            conv: Conv2d::with_init(&scope.pp(1), inputs, inputs / 2, 3, options, WEIGHT, None)?,
            norm: BatchNorm2d::with_init(&scope.pp(2), inputs / 2, BatchNormConfig::default(), NORM_WEIGHT)?,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for Upsample {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = ops::upsample_nearest2d(tape, &inputs[0], 2)?;
        Ok(vec![self.norm.forward(tape, &self.conv.forward(tape, &x)?, FusedActivation::Relu)?])
    }
}

/// Noise and condition to 4×4 maps.
#[derive(Debug)]
struct Root {
    name: String,
    fc: Linear,
    norm: BatchNorm2d,
    channels: usize,
}

impl Block for Root {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.fc.forward(tape, &inputs[0])?;
        let (batch, features) = (x.dims()[0], x.dims()[1]);
        // The norm is over features, as `BatchNorm1d`: images of one pixel.
        let x = ops::reshape(tape, &x, (batch, features, 1, 1))?;
        let x = self.norm.forward(tape, &x, FusedActivation::Relu)?;
        Ok(vec![ops::reshape(tape, &x, (batch, self.channels, 4, 4))?])
    }
}

/// The last maps to an image.
#[derive(Debug)]
struct ToImage {
    name: String,
    conv: Conv2d,
}

impl Block for ToImage {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![ops::tanh(tape, &self.conv.forward(tape, &inputs[0])?)?])
    }
}

/// What the generator gives.
#[derive(Debug, Clone)]
pub struct Generated {
    /// [N, 3, 64, 64], between −1 and 1.
    pub image: Value,
    /// What the condition was drawn from.
    pub condition: Condition,
}

/// Text and noise to an image of 64×64 pixels.
#[derive(Debug, Clone)]
pub struct StageOneGenerator {
    conditioning: ConditioningAugmentation,
    /// From noise and condition to an image, each of one value.
    blocks: Vec<Arc<dyn Block>>,
}

impl StageOneGenerator {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        let channels = 8 * config.gf_dim;
        let conditioning = ConditioningAugmentation::new(&scope.pp("ca_net").block(), config)?;
        let fc = scope.pp("fc").block();
        let (inputs, outputs) = (config.z_dim + config.condition_dim, channels * 16);
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        blocks.push(Arc::new(Root {
            name: fc.block_name().to_owned(),
            fc: Linear::with_init(&fc.pp(0), inputs, outputs, WEIGHT, None)?,
            norm: BatchNorm2d::with_init(&fc.pp(1), outputs, BatchNormConfig::default(), NORM_WEIGHT)?,
            channels,
        }));
        for index in 0..4 {
            let scope = scope.pp(format!("upsample{}", index + 1));
            blocks.push(Arc::new(Upsample::new(&scope, channels >> index)?));
        }
        let img = scope.pp("img").block();
        let options = Conv2dOptions::new(1, 1);
        let conv = Conv2d::with_init(&img.pp(0), channels >> 4, 3, 3, options, WEIGHT, None)?;
        blocks.push(Arc::new(ToImage { name: img.block_name().to_owned(), conv }));
        Ok(Self { conditioning, blocks })
    }

    /// Images for text vectors [N, text_dim], noise [N, z_dim] and the noise of the condition [N, condition_dim].
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn forward(
        &self,
        tape: &Tape,
        text: &Value,
        noise: &Value,
        condition_noise: &Value,
    ) -> Result<Generated> {
        let condition = self.conditioning.forward(tape, text)?;
        let sample = condition.sample(tape, condition_noise)?;
        let both = ops::cat(tape, &[noise, &sample], 1)?;
        Ok(Generated { image: tape.run_sequence(&self.blocks, &both)?, condition })
    }
}
