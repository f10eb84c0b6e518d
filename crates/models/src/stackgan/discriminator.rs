//! The discriminators of both stages.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, Conv2d};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value};

use super::layers::{Activation, Convolution, joined, sequence};
use super::{NORM_WEIGHT, SLOPE, StackGanConfig, WEIGHT, doublings};

/// The head: features, alone or joined with a condition, to a logit.
#[derive(Debug)]
struct LogitHead {
    name: String,
    /// The layers that join a condition with the features; `None` without a condition.
    joint: Option<(Conv2d, BatchNorm2d)>,
    logit: Conv2d,
}

impl LogitHead {
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
        let (position, options) = (if conditioned { 3 } else { 0 }, Conv2dOptions::new(4, 0));
        let bias = Some(Init::TorchBias { fan_in: features * 16 });
        let logit = Conv2d::with_init(&logits.pp(position), features, 1, 4, options, WEIGHT, bias)?;
        Ok(Self { name: scope.block_name().to_owned(), joint, logit })
    }
}

impl Block for LogitHead {
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

/// The convolutions that make features of images of this size.
pub(super) fn encoder_layers(config: &StackGanConfig, size: usize) -> Result<Vec<Convolution>> {
    let (width, halvings) = (config.df_dim, doublings("StackGAN's discriminator", 4, size)?);
    let halving = |index| Convolution { outputs: width << index, kernel: 4, stride: 2 };
    // Large images lead to many channels, which are reduced again to 8 times the width.
    let reduction = |index| Convolution { outputs: width << index, kernel: 3, stride: 1 };
    Ok((0..halvings).map(halving).chain((3..halvings - 1).rev().map(reduction)).collect())
}

/// A discriminator of images, with and without their conditions.
#[derive(Debug, Clone)]
pub struct Discriminator {
    /// Images to feature maps of 4×4, a sequence.
    encoder: Vec<Arc<dyn Block>>,
    conditional: Arc<dyn Block>,
    unconditional: Option<Arc<dyn Block>>,
}

impl Discriminator {
    /// Registers the parameters of the first stage's discriminator.
    ///
    /// # Errors
    /// If a name is taken, or the image size is not 4 times a power of two.
    pub fn stage_one(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        Self::new(scope, config, config.stage_one_size, false)
    }

    /// Registers the parameters of the second stage's discriminator, which also has a head without a condition.
    ///
    /// # Errors
    /// If a name is taken, or the image size is not 4 times a power of two.
    pub fn stage_two(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        Self::new(scope, config, config.stage_two_size, true)
    }

    fn new(scope: &Scope, config: &StackGanConfig, size: usize, unconditional: bool) -> Result<Self> {
        let layers = encoder_layers(config, size)?;
        let features = layers.last().map_or(0, |last| last.outputs);
        let encoder = sequence(&scope.pp("encode_img"), config, 3, &layers, Activation::LeakyRelu)?;
        let conditional = Arc::new(LogitHead::new(&scope.pp("get_cond_logits"), config, features, true)?);
        let head = || LogitHead::new(&scope.pp("get_uncond_logits"), config, features, false);
        let unconditional = unconditional.then(head).transpose()?;
        let unconditional = unconditional.map(|head| Arc::new(head) as Arc<dyn Block>);
        Ok(Self { encoder, conditional, unconditional })
    }

    /// Computes features [N, 8·df_dim, 4, 4] of images [N, 3, S, S]; images below 64×64 have fewer channels.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn features(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run_sequence(&self.encoder, images)
    }

    /// Computes a logit `[N]` for each pair of features and condition: large if both seem real and belong together.
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn logits(&self, tape: &Tape, features: &Value, condition: &Value) -> Result<Value> {
        Ok(tape.run(&self.conditional, &[features.clone(), condition.clone()])?[0].clone())
    }

    /// Computes a logit `[N]` for the features of each image alone: large if it seems real. `None` in the first stage.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn logits_alone(&self, tape: &Tape, features: &Value) -> Result<Option<Value>> {
        self.unconditional.as_ref().map(|head| tape.run1(head, features)).transpose()
    }
}
