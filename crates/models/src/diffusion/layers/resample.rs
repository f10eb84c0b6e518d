//! Downsampling and upsampling by 2.

use phalanx_tensor::nn::Conv2d;
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

/// A 3×3 convolution of stride 2 (`conv`), with the names of diffusers' `Downsample2D`.
#[derive(Debug)]
pub(in crate::diffusion) struct Downsample2D {
    name: String,
    conv: Conv2d,
    /// Pads zeros at the right and the bottom only.
    one_sided: bool,
}

impl Downsample2D {
    /// Registers the block with `padding` zeros on each side, 1 or 0. With 0 it pads one zero at the right and one at
    /// the bottom, like TensorFlow's `SAME`.
    pub(in crate::diffusion) fn new(scope: &Scope, channels: usize, padding: usize) -> Result<Self> {
        let scope = scope.block();
        let options = Conv2dOptions::new(2, padding);
        Ok(Self {
            conv: Conv2d::new(&scope.pp("conv"), channels, channels, 3, options)?,
            one_sided: padding == 0,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for Downsample2D {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut x = inputs[0].clone();
        if self.one_sided {
            x = ops::pad_with_zeros(tape, &x, 3, 0, 1)?;
            x = ops::pad_with_zeros(tape, &x, 2, 0, 1)?;
        }
        Ok(vec![self.conv.forward(tape, &x)?])
    }
}

/// Nearest-neighbour upsampling and a 3×3 convolution (`conv`), with the names of diffusers' `Upsample2D`.
#[derive(Debug)]
pub(in crate::diffusion) struct Upsample2D {
    name: String,
    conv: Conv2d,
}

impl Upsample2D {
    pub(in crate::diffusion) fn new(scope: &Scope, channels: usize) -> Result<Self> {
        let scope = scope.block();
        let conv = Conv2d::new(&scope.pp("conv"), channels, channels, 3, Conv2dOptions::new(1, 1))?;
        Ok(Self { conv, name: scope.block_name().to_owned() })
    }
}

impl Block for Upsample2D {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = ops::upsample_nearest2d(tape, &inputs[0], 2)?;
        Ok(vec![self.conv.forward(tape, &x)?])
    }
}
