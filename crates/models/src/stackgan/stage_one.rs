//! The generator of the first stage.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, Linear};
use phalanx_tensor::ops::{self, FusedActivation};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::layers::upsampling;
use super::{Condition, ConditioningAugmentation, NORM_WEIGHT, StackGanConfig, WEIGHT, doublings};

/// Maps noise and condition to 4×4 feature maps.
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
        // The norm is over features, like `BatchNorm1d`: images of one pixel.
        let x = ops::reshape(tape, &x, (batch, features, 1, 1))?;
        let x = self.norm.forward(tape, &x, FusedActivation::Relu)?;
        Ok(vec![ops::reshape(tape, &x, (batch, self.channels, 4, 4))?])
    }
}

/// The outputs of a generator.
#[derive(Debug, Clone)]
pub struct GeneratorOutput {
    /// [N, 3, S, S], between −1 and 1.
    pub image: Value,
    /// The distribution of the condition.
    pub condition: Condition,
}

/// The generator of the first stage: text and noise to a small image.
#[derive(Debug, Clone)]
pub struct StageOneGenerator {
    conditioning: ConditioningAugmentation,
    /// Noise and condition to an image, a sequence.
    blocks: Vec<Arc<dyn Block>>,
}

impl StageOneGenerator {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, the image size is not 4 times a power of two, or the width cannot be halved as often.
    pub fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        let doublings = doublings("StackGAN's stage I", 4, config.stage_one_size)?;
        let channels = 8 * config.gf_dim;
        let conditioning = ConditioningAugmentation::new(&scope.pp("ca_net").block(), config)?;
        let fc = scope.pp("fc").block();
        let (inputs, outputs) = (config.z_dim + config.condition_dim, channels * 16);
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        blocks.push(Arc::new(Root {
            name: fc.block_name().to_owned(),
            fc: Linear::with_init(&fc.pp(0), inputs, outputs, WEIGHT, None)?,
            norm: BatchNorm2d::with_init(&fc.pp(1), outputs, config.norms(), NORM_WEIGHT)?,
            channels,
        }));
        blocks.extend(upsampling(scope, config, channels, doublings)?);
        Ok(Self { conditioning, blocks })
    }

    /// Returns the blocks behind the condition, a sequence: the root, which takes noise and condition [N, z_dim +
    /// condition_dim], the doublings, and the image.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Generates images from text vectors [N, text_dim], noise [N, z_dim] and the noise of the condition [N,
    /// condition_dim].
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn forward(
        &self,
        tape: &Tape,
        text: &Value,
        noise: &Value,
        condition_noise: &Value,
    ) -> Result<GeneratorOutput> {
        let condition = self.conditioning.forward(tape, text)?;
        let sample = condition.sample(tape, condition_noise)?;
        let both = ops::cat(tape, &[noise, &sample], 1)?;
        Ok(GeneratorOutput { image: tape.run_sequence(&self.blocks, &both)?, condition })
    }
}
