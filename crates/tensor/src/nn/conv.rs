//! The two-dimensional convolution layer.

use crate::Result;
use crate::init::Init;
use crate::ops::{self, Conv2dOptions};
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};

/// As `torch.nn.Conv2d`: parameters `weight` [O, I/groups, K, K] and optionally `bias` `[O]`.
#[derive(Debug, Clone)]
pub struct Conv2d {
    weight: Param,
    bias: Option<Param>,
    options: Conv2dOptions,
}

impl Conv2d {
    /// Makes a layer with a bias, a square window and PyTorch's initial values (uniform in ±1/√fan-in).
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(
        scope: &Scope,
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        options: Conv2dOptions,
    ) -> Result<Self> {
        let fan_in = in_channels / options.groups.max(1) * kernel * kernel;
        let bias = Some(Init::TorchBias { fan_in });
        Self::with_init(scope, in_channels, out_channels, kernel, options, Init::TorchDefault, bias)
    }

    /// Makes a layer with given initial values; without a bias if there is none for it.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn with_init(
        scope: &Scope,
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        options: Conv2dOptions,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        let per_group = in_channels / options.groups.max(1);
        let weight = scope.param("weight", (out_channels, per_group, kernel, kernel), weight)?;
        let bias = bias.map(|init| scope.param("bias", out_channels, init)).transpose()?;
        Ok(Self { weight, bias, options })
    }

    /// Maps [N, I, H, W] to [N, O, H', W'].
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let bias = self.bias.as_ref().map(|bias| tape.param(bias)).transpose()?;
        ops::conv2d(tape, x, &tape.param(&self.weight)?, bias.as_ref(), self.options)
    }
}

/// As `torch.nn.ConvTranspose2d`: parameters `weight` [I, O/groups, K, K] and optionally `bias` `[O]`.
#[derive(Debug, Clone)]
pub struct ConvTranspose2d {
    weight: Param,
    bias: Option<Param>,
    options: Conv2dOptions,
    output_padding: usize,
}

impl ConvTranspose2d {
    /// Makes a layer with a square window and given initial values; without a bias if there is none for it.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn with_init(
        scope: &Scope,
        in_channels: usize,
        out_channels: usize,
        kernel: usize,
        (options, output_padding): (Conv2dOptions, usize),
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Self> {
        let per_group = out_channels / options.groups.max(1);
        let weight = scope.param("weight", (in_channels, per_group, kernel, kernel), weight)?;
        let bias = bias.map(|init| scope.param("bias", out_channels, init)).transpose()?;
        Ok(Self { weight, bias, options, output_padding })
    }

    /// Maps [N, I, H, W] to [N, O, H', W'].
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let bias = self.bias.as_ref().map(|bias| tape.param(bias)).transpose()?;
        let weight = tape.param(&self.weight)?;
        ops::conv_transpose2d(tape, x, &weight, bias.as_ref(), self.options, [self.output_padding; 2])
    }
}
