//! A convolution without bias and its batch norm.

use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d};
use phalanx_tensor::ops::{Conv2dOptions, FusedActivation};
use phalanx_tensor::{Init, Result, Scope, Tape, Value};

/// A convolution without bias, followed by a batch norm.
#[derive(Debug, Clone)]
pub(crate) struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    /// Registers the parameters of a convolution of (inputs, outputs, kernel) and its norm in their scopes.
    pub(crate) fn new(
        (conv, norm): (&Scope, &Scope),
        (inputs, outputs, kernel): (usize, usize, usize),
        options: Conv2dOptions,
        config: BatchNormConfig,
    ) -> Result<Self> {
        Ok(Self {
            conv: Conv2d::with_init(conv, inputs, outputs, kernel, options, Init::KAIMING_FAN_OUT, None)?,
            norm: BatchNorm2d::new(norm, outputs, config)?,
        })
    }

    /// Convolution, norm, activation.
    pub(crate) fn forward(&self, tape: &Tape, x: &Value, activation: FusedActivation) -> Result<Value> {
        self.norm.forward(tape, &self.conv.forward(tape, x)?, activation)
    }

    /// Convolution, norm, addition of `skip`, activation.
    pub(crate) fn forward_added(
        &self,
        tape: &Tape,
        x: &Value,
        skip: &Value,
        activation: FusedActivation,
    ) -> Result<Value> {
        self.norm.forward_added(tape, &self.conv.forward(tape, x)?, skip, activation)
    }
}
