//! The discriminators of both stages.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, Conv2d};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value};

use super::layers::{After, Convolution, joined, sequence};
use super::{NORM_WEIGHT, SLOPE, StackGanConfig, WEIGHT, doublings};

/// Features, joined with a condition or alone, to a logit.
#[derive(Debug)]
struct Judge {
    name: String,
    /// Where there is a condition: what joins it with the features.
    joint: Option<(Conv2d, BatchNorm2d)>,
    logit: Conv2d,
}

impl Judge {
    fn new(scope: &Scope, config: &StackGanConfig, features: usize, conditioned: bool) -> Result<Self> {
        let scope = scope.block();
        let logits = scope.pp("outlogits");
        let joint = || {
            let (inputs, options) = (features + config.condition_dim, Conv2dOptions::new(1, 1));
            let conv = Conv2d::with_init(&logits.pp(0), inputs, features, 3, options, WEIGHT, None)?;
            Ok::<_, TensorError>((
                conv,
                BatchNorm2d::with_init(&logits.pp(1), features, config.norms(), NORM_WEIGHT)?,
            ))
        };
        let joint = conditioned.then(joint).transpose()?;
        let (place, options) = (if conditioned { 3 } else { 0 }, Conv2dOptions::new(4, 0));
        let bias = Some(Init::TorchBias { fan_in: features * 16 });
        let logit = Conv2d::with_init(&logits.pp(place), features, 1, 4, options, WEIGHT, bias)?;
        Ok(Self { name: scope.block_name().to_owned(), joint, logit })
    }
}

impl Block for Judge {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut x = inputs[0].clone();
        if let Some((conv, norm)) = &self.joint {
            x = conv.forward(tape, &joined(tape, &x, &inputs[1])?)?;
            x = ops::leaky_relu(tape, &norm.forward(tape, &x, FusedActivation::None)?, SLOPE)?;
        }
        let batch = x.dims()[0];
        Ok(vec![ops::reshape(tape, &self.logit.forward(tape, &x)?, batch)?])
    }
}

/// Judges images, and conditions with them.
#[derive(Debug, Clone)]
pub struct Discriminator {
    /// From an image to maps of 4×4, each of one value.
    encoder: Vec<Arc<dyn Block>>,
    conditional: Arc<dyn Block>,
    unconditional: Option<Arc<dyn Block>>,
}

impl Discriminator {
    /// Registers the parameters of the first stage's discriminator.
    ///
    /// # Errors
    /// If a name is taken, or the image's size is not 4 doubled.
    pub fn stage_one(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        Self::new(scope, config, config.stage_one_size, false)
    }

    /// Registers the parameters of the second stage's discriminator, which judges images without their conditions as well.
    ///
    /// # Errors
    /// If a name is taken, or the image's size is not 4 doubled.
    pub fn stage_two(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        Self::new(scope, config, config.stage_two_size, true)
    }

    fn new(scope: &Scope, config: &StackGanConfig, size: usize, alone_too: bool) -> Result<Self> {
        let (width, halvings) = (config.df_dim, doublings("StackGAN's discriminator", 4, size)?);
        let mut layers = Vec::new();
        for index in 0..halvings {
            layers.push(Convolution { outputs: width << index, kernel: 4, stride: 2 });
        }
        // Large images come to many channels, which are brought down again.
        let features = (width << (halvings - 1)).min(8 * width);
        for index in (3..halvings - 1).rev() {
            layers.push(Convolution { outputs: width << index, kernel: 3, stride: 1 });
        }
        let encoder = sequence(&scope.pp("encode_img"), config, 3, &layers, After::LeakyRelu)?;
        let conditional = Arc::new(Judge::new(&scope.pp("get_cond_logits"), config, features, true)?);
        let judge = || Judge::new(&scope.pp("get_uncond_logits"), config, features, false);
        let unconditional = alone_too.then(judge).transpose()?;
        let unconditional = unconditional.map(|judge| Arc::new(judge) as Arc<dyn Block>);
        Ok(Self { encoder, conditional, unconditional })
    }

    /// Features [N, 8·df_dim, 4, 4] of images [N, 3, S, S]; of images below 64×64 fewer channels, the last that come about.
    ///
    /// # Errors
    /// If the shape is another.
    pub fn features(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run_sequence(&self.encoder, images)
    }

    /// A logit `[N]` for each pair of features and condition: large where both seem real and to belong together.
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn logits(&self, tape: &Tape, features: &Value, condition: &Value) -> Result<Value> {
        Ok(tape.run(&self.conditional, &[features.clone(), condition.clone()])?[0].clone())
    }

    /// A logit `[N]` for the features of each image alone: large where it seems real. `None` in the first stage.
    ///
    /// # Errors
    /// If the shape is another.
    pub fn logits_alone(&self, tape: &Tape, features: &Value) -> Result<Option<Value>> {
        self.unconditional.as_ref().map(|judge| tape.run1(judge, features)).transpose()
    }
}
