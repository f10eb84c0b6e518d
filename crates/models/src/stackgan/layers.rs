//! Blocks that several of the networks are made of.

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

/// The end of a generator: so many doublings of maps of `channels` channels, `upsample1` and so on, and `img`.
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

/// What follows a convolution and its norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    Relu,
    LeakyRelu,
}

/// A convolution, a norm but for the first of a sequence, and an activation.
#[derive(Debug)]
struct ConvLayer {
    name: String,
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
    after: After,
}

impl Block for ConvLayer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.conv.forward(tape, &inputs[0])?;
        let x = match (&self.norm, self.after) {
            (Some(norm), After::Relu) => return Ok(vec![norm.forward(tape, &x, FusedActivation::Relu)?]),
            (Some(norm), After::LeakyRelu) => norm.forward(tape, &x, FusedActivation::None)?,
            (None, After::Relu) => return Ok(vec![ops::relu(tape, &x)?]),
            (None, After::LeakyRelu) => x,
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

/// Convolutions one after the other, as a `torch.nn.Sequential` called as the scope is: the first has no norm and takes two
/// places of the sequence, the others three. Every convolution with its norm is a block.
pub(super) fn sequence(
    scope: &Scope,
    config: &StackGanConfig,
    inputs: usize,
    convolutions: &[Convolution],
    after: After,
) -> Result<Vec<Arc<dyn Block>>> {
    let (mut place, mut channels) = (0, inputs);
    let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
    for &Convolution { outputs, kernel, stride } in convolutions {
        // Convolution and norm have names of their own, which share no prefix.
        let scope = scope.block_named(&place.to_string());
        let options = Conv2dOptions::new(stride, 1);
        let conv = Conv2d::with_init(&scope.pp(place), channels, outputs, kernel, options, WEIGHT, None)?;
        let norm = || BatchNorm2d::with_init(&scope.pp(place + 1), outputs, config.norms(), NORM_WEIGHT);
        let norm = (place > 0).then(norm).transpose()?;
        place += if norm.is_some() { 3 } else { 2 };
        blocks.push(Arc::new(ConvLayer { name: scope.block_name().to_owned(), conv, norm, after }));
        channels = outputs;
    }
    Ok(blocks)
}

/// Conditions [N, C] beside every pixel of maps [N, K, S, S], behind their channels.
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
