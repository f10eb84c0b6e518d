//! The generator of the second stage.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, Conv2d};
use phalanx_tensor::ops::{Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value};

use super::layers::{Activation, Convolution, joined, sequence, upsampling};
use super::{ConditioningAugmentation, GeneratorOutput, NORM_WEIGHT, StackGanConfig, WEIGHT, doublings};
use crate::run_block::run_block;

/// Fuses the encoded image with the condition: concatenation, 3×3 convolution, norm, ReLU.
#[derive(Debug)]
struct ConditionFusion {
    name: String,
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl Block for ConditionFusion {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.conv.forward(tape, &joined(tape, &inputs[0], &inputs[1])?)?;
        Ok(vec![self.norm.forward(tape, &x, FusedActivation::Relu)?])
    }
}

/// Two 3×3 convolutions with norms, and a skip connection.
#[derive(Debug)]
struct Residual {
    name: String,
    conv1: Conv2d,
    norm1: BatchNorm2d,
    conv2: Conv2d,
    norm2: BatchNorm2d,
}

impl Block for Residual {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.conv1.forward(tape, &inputs[0])?;
        let x = self.norm1.forward(tape, &x, FusedActivation::Relu)?;
        let x = self.conv2.forward(tape, &x)?;
        Ok(vec![self.norm2.forward_added(tape, &x, &inputs[0], FusedActivation::Relu)?])
    }
}

/// The generator of the second stage: a small image and its text to a larger image.
#[derive(Debug, Clone)]
pub struct StageTwoGenerator {
    conditioning: ConditioningAugmentation,
    /// The small image to feature maps of a quarter of its size, a sequence.
    encoder: Vec<Arc<dyn Block>>,
    /// Takes the encoded image and the condition.
    joint: Arc<dyn Block>,
    /// The joined features to the image, a sequence.
    decoder: Vec<Arc<dyn Block>>,
}

impl StageTwoGenerator {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, an image size is not a smaller one times a power of two, or the width cannot be halved as
    /// often.
    pub fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        const WHAT: &str = "StackGAN's stage II";
        let size = config.stage_one_size;
        doublings(WHAT, size, config.stage_two_size)?;
        let doublings = doublings(WHAT, size / 4, config.stage_two_size)?;
        if !size.is_multiple_of(4) {
            let problem = format!("the size {size} of stage I cannot be halved twice");
            return Err(TensorError::Shape { op: WHAT, problem });
        }
        let width = config.gf_dim;
        let conditioning = ConditioningAugmentation::new(&scope.pp("ca_net").block(), config)?;
        let layers = [
            Convolution { outputs: width, kernel: 3, stride: 1 },
            Convolution { outputs: 2 * width, kernel: 4, stride: 2 },
            Convolution { outputs: 4 * width, kernel: 4, stride: 2 },
        ];
        let encoder = sequence(&scope.pp("encoder"), config, 3, &layers, Activation::Relu)?;
        let channels = 4 * width;
        let options = Conv2dOptions::new(1, 1);
        let conv =
            |scope: &Scope, inputs| Conv2d::with_init(scope, inputs, channels, 3, options, WEIGHT, None);
        let norm = |scope: &Scope| BatchNorm2d::with_init(scope, channels, config.norms(), NORM_WEIGHT);
        let at = scope.pp("hr_joint").block();
        let joint = Arc::new(ConditionFusion {
            conv: conv(&at.pp(0), channels + config.condition_dim)?,
            norm: norm(&at.pp(1))?,
            name: at.block_name().to_owned(),
        });
        let mut decoder: Vec<Arc<dyn Block>> = Vec::new();
        for index in 0..config.residual_blocks {
            let at = scope.pp("residual").pp(index).block();
            let layers = at.pp("block");
            decoder.push(Arc::new(Residual {
                conv1: conv(&layers.pp(0), channels)?,
                norm1: norm(&layers.pp(1))?,
                conv2: conv(&layers.pp(3), channels)?,
                norm2: norm(&layers.pp(4))?,
                name: at.block_name().to_owned(),
            }));
        }
        decoder.extend(upsampling(scope, config, channels, doublings)?);
        Ok(Self { conditioning, encoder, joint, decoder })
    }

    /// Generates images [N, 3, S', S'] from images of the first stage [N, 3, S, S], text vectors [N, text_dim] and the
    /// noise of the condition [N, condition_dim]. The authors' training detaches the first stage's images
    /// ([`Value::detach`]).
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn forward(
        &self,
        tape: &Tape,
        small: &Value,
        text: &Value,
        condition_noise: &Value,
    ) -> Result<GeneratorOutput> {
        let encoded = tape.run_sequence(&self.encoder, small)?;
        let condition = self.conditioning.forward(tape, text)?;
        let sample = condition.sample(tape, condition_noise)?;
        let x = run_block(tape, &self.joint, &[encoded, sample])?;
        Ok(GeneratorOutput { image: tape.run_sequence(&self.decoder, &x)?, condition })
    }
}
