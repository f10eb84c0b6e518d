//! Blocks of several networks.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, Conv2d};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value};

use super::{NORM_WEIGHT, SLOPE, StackGanConfig, WEIGHT};

/// Twice the size and half the channels: nearest neighbours, 3×3 convolution, norm, ReLU.
#[derive(Debug)]
struct Upsample {
    name: String,
    conv: Conv2d,
    norm: BatchNorm2d,
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

/// Converts the last feature maps to an image.
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

/// Registers the end of a generator: `doublings` upsampling blocks for `channels` channels, `upsample1` and so on, then
/// `img`.
pub(super) fn upsampling(
    scope: &Scope,
    config: &StackGanConfig,
    channels: usize,
    doublings: usize,
) -> Result<Vec<Arc<dyn Block>>> {
    let last = channels >> doublings;
    if last << doublings != channels {
        let problem = format!(
            "{channels} channels cannot be halved {doublings} times; the generator's width is too small"
        );
        return Err(TensorError::Shape { op: "upsampling of a StackGAN", problem });
    }
    let options = Conv2dOptions::new(1, 1);
    let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
    for index in 0..doublings {
        let scope = scope.pp(format!("upsample{}", index + 1)).block();
        let (inputs, outputs) = (channels >> index, channels >> (index + 1));
        blocks.push(Arc::new(Upsample {
            conv: Conv2d::with_init(&scope.pp(1), inputs, outputs, 3, options, WEIGHT, None)?,
            norm: BatchNorm2d::with_init(&scope.pp(2), outputs, config.norms(), NORM_WEIGHT)?,
            name: scope.block_name().to_owned(),
        }));
    }
    let img = scope.pp("img").block();
    let conv = Conv2d::with_init(&img.pp(0), last, 3, 3, options, WEIGHT, None)?;
    blocks.push(Arc::new(ToImage { name: img.block_name().to_owned(), conv }));
    Ok(blocks)
}

/// The activation after a convolution and its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    Relu,
    LeakyRelu,
}

/// A convolution, a norm except for the first of a sequence, and an activation.
#[derive(Debug)]
struct ConvLayer {
    name: String,
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
    activation: Activation,
}

impl Block for ConvLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.conv.forward(tape, &inputs[0])?;
        let x = match (&self.norm, self.activation) {
            (Some(norm), Activation::Relu) => {
                return Ok(vec![norm.forward(tape, &x, FusedActivation::Relu)?]);
            }
            (Some(norm), Activation::LeakyRelu) => norm.forward(tape, &x, FusedActivation::None)?,
            (None, Activation::Relu) => return Ok(vec![ops::relu(tape, &x)?]),
            (None, Activation::LeakyRelu) => x,
        };
        Ok(vec![ops::leaky_relu(tape, &x, SLOPE)?])
    }
}

/// A convolution of a [`sequence`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Convolution {
    pub(super) outputs: usize,
    pub(super) kernel: usize,
    pub(super) stride: usize,
}

/// Registers convolutions with the names of a `torch.nn.Sequential` at `scope`. The first has no norm and takes two
/// positions of the sequence, each further one three. Every convolution with its norm is a block.
pub(super) fn sequence(
    scope: &Scope,
    config: &StackGanConfig,
    inputs: usize,
    convolutions: &[Convolution],
    activation: Activation,
) -> Result<Vec<Arc<dyn Block>>> {
    let (mut position, mut channels) = (0, inputs);
    let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
    for &Convolution { outputs, kernel, stride } in convolutions {
        // Convolution and norm have different names without a common prefix.
        let scope = scope.block_named(&position.to_string());
        let options = Conv2dOptions::new(stride, 1);
        let conv = Conv2d::with_init(&scope.pp(position), channels, outputs, kernel, options, WEIGHT, None)?;
        let norm = || BatchNorm2d::with_init(&scope.pp(position + 1), outputs, config.norms(), NORM_WEIGHT);
        let norm = (position > 0).then(norm).transpose()?;
        position += if norm.is_some() { 3 } else { 2 };
        blocks.push(Arc::new(ConvLayer { name: scope.block_name().to_owned(), conv, norm, activation }));
        channels = outputs;
    }
    Ok(blocks)
}

/// Appends conditions [N, C] to the channels of every pixel of feature maps [N, K, S, S].
pub(super) fn joined(tape: &Tape, maps: &Value, condition: &Value) -> Result<Value> {
    let (&[batch, _, height, width], &[_, size]) = (maps.dims(), condition.dims()) else {
        let problem = format!(
            "maps {:?} and conditions {:?}; expected [N, K, S, S] and [N, C]",
            maps.shape(),
            condition.shape()
        );
        return Err(TensorError::Shape { op: "StackGAN's maps with conditions", problem });
    };
    let condition = ops::reshape(tape, condition, (batch, size, 1, 1))?;
    let condition = ops::broadcast_as(tape, &condition, (batch, size, height, width))?;
    ops::cat(tape, &[maps, &condition], 1)
}
