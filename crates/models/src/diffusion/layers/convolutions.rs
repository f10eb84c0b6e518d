//! The first and last convolutions.

use phalanx_tensor::nn::{Conv2d, GroupNorm};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::conv;

/// A convolution that keeps the size.
#[derive(Debug)]
pub(in crate::diffusion) struct Convolution {
    name: String,
    conv: Conv2d,
}

impl Convolution {
    /// Registers a convolution of (inputs, outputs, kernel); the kernel size is odd.
    pub(in crate::diffusion) fn new(scope: &Scope, sizes: (usize, usize, usize)) -> Result<Self> {
        let scope = scope.block();
        let conv = conv(&scope, sizes, Conv2dOptions::new(1, sizes.2 / 2), false)?;
        Ok(Self { conv, name: scope.block_name().to_owned() })
    }
}

impl Block for Convolution {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.conv.forward(tape, &inputs[0])?])
    }
}

/// `conv_norm_out`, SiLU, and the 3×3 convolution `conv_out`.
#[derive(Debug)]
pub(in crate::diffusion) struct NormAndConvolution {
    name: String,
    norm: GroupNorm,
    conv: Conv2d,
}

impl NormAndConvolution {
    /// Registers the parameters under `scope`, in a block called `out`.
    pub(in crate::diffusion) fn new(
        scope: &Scope,
        (inputs, outputs): (usize, usize),
        groups: usize,
        eps: f64,
        zero_init: bool,
    ) -> Result<Self> {
        let scope = scope.block_named("out");
        Ok(Self {
            norm: GroupNorm::new(&scope.pp("conv_norm_out"), groups, inputs, eps)?,
            conv: conv(&scope.pp("conv_out"), (inputs, outputs, 3), Conv2dOptions::new(1, 1), zero_init)?,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for NormAndConvolution {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = ops::silu(tape, &self.norm.forward(tape, &inputs[0])?)?;
        Ok(vec![self.conv.forward(tape, &x)?])
    }
}
