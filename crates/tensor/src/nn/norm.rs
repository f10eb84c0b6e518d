//! Normalisation layers.

use crate::Result;
use crate::init::Init;
use crate::ops::{self, BatchNormStats, FusedActivation};
use crate::store::{Buffer, Param, Scope};
use crate::tape::{Tape, Value};

/// The settings of a batch norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormConfig {
    /// Added to the variance.
    pub eps: f64,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// True to compute statistics over the batches of all ranks.
    pub sync: bool,
    /// Initial value of the weight.
    pub weight: f64,
}

impl Default for BatchNormConfig {
    fn default() -> Self {
        Self { eps: 1e-5, momentum: 0.1, sync: false, weight: 1.0 }
    }
}

/// As `torch.nn.BatchNorm2d`: parameters `weight`, `bias`, buffers `running_mean`, `running_var`,
/// `num_batches_tracked`.
///
/// While a rule of the store freezes weight and bias ([`crate::ParamRules`]), it normalises by its running statistics and
/// does not update them, as a layer in PyTorch's `eval()` mode.
#[derive(Debug, Clone)]
pub struct BatchNorm2d {
    weight: Param,
    bias: Param,
    running_mean: Buffer,
    running_var: Buffer,
    num_batches: Buffer,
    config: BatchNormConfig,
    /// True if it uses its running statistics while its parameters are frozen.
    follows_freeze: bool,
}

impl BatchNorm2d {
    /// Makes a layer over `channels` channels.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, channels: usize, config: BatchNormConfig) -> Result<Self> {
        Self::with_init(scope, channels, config, Init::Constant(config.weight))
    }

    /// Makes a layer whose weight has given initial values.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn with_init(scope: &Scope, channels: usize, config: BatchNormConfig, weight: Init) -> Result<Self> {
        // Without `sync`, each rank's statistics follow its own samples.
        let statistics = |name, value| match config.sync {
            true => scope.shared_buffer(name, channels, value),
            false => scope.buffer(name, channels, value),
        };
        let weight = scope.param("weight", channels, weight)?;
        let bias = scope.param("bias", channels, Init::ZEROS)?;
        Ok(Self {
            follows_freeze: weight.is_frozen_by_rule() && bias.is_frozen_by_rule(),
            weight,
            bias,
            running_mean: statistics("running_mean", 0.0)?,
            running_var: statistics("running_var", 1.0)?,
            num_batches: scope.counter("num_batches_tracked")?,
            config,
        })
    }

    /// Normalises [N, C, H, W] and applies the activation in the same pass.
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn forward(&self, tape: &Tape, x: &Value, activation: FusedActivation) -> Result<Value> {
        self.run(tape, x, activation, None)
    }

    /// Normalises [N, C, H, W], adds `residual` of the same shape and applies the activation, in the same pass.
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn forward_added(
        &self,
        tape: &Tape,
        x: &Value,
        residual: &Value,
        activation: FusedActivation,
    ) -> Result<Value> {
        self.run(tape, x, activation, Some(residual))
    }

    fn run(
        &self,
        tape: &Tape,
        x: &Value,
        activation: FusedActivation,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let stats = BatchNormStats {
            running_mean: &self.running_mean,
            running_var: &self.running_var,
            num_batches: &self.num_batches,
            momentum: self.config.momentum,
            eps: self.config.eps,
            sync: self.config.sync,
            fixed: self.follows_freeze && self.weight.is_frozen(),
        };
        let (weight, bias) = (tape.param(&self.weight)?, tape.param(&self.bias)?);
        let affine = ops::BatchNormAffine { gamma: &weight, beta: &bias, residual, activation };
        ops::batch_norm2d(tape, x, affine, &stats)
    }
}

/// As `torch.nn.LayerNorm` over the last dimension: parameters `weight` and `bias`.
#[derive(Debug, Clone)]
pub struct LayerNorm {
    weight: Param,
    bias: Param,
    eps: f64,
}

impl LayerNorm {
    /// Makes a layer over rows of `width` elements.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, width: usize, eps: f64) -> Result<Self> {
        let weight = scope.param("weight", width, Init::ONES)?;
        Ok(Self { weight, bias: scope.param("bias", width, Init::ZEROS)?, eps })
    }

    /// Normalises every row of [.., C].
    ///
    /// # Errors
    /// If the last dimension is not C.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        ops::layer_norm(tape, x, &tape.param(&self.weight)?, &tape.param(&self.bias)?, self.eps)
    }
}

/// As `torch.nn.RMSNorm` over the last dimension: parameter `weight`.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    weight: Param,
    eps: f64,
}

impl RmsNorm {
    /// Makes a layer over rows of `width` elements.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn new(scope: &Scope, width: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: scope.param("weight", width, Init::ONES)?, eps })
    }

    /// Normalises every row of [.., C].
    ///
    /// # Errors
    /// If the last dimension is not C.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        ops::rms_norm(tape, x, &tape.param(&self.weight)?, self.eps)
    }
}

/// As `torch.nn.GroupNorm`: parameters `weight` and `bias`.
#[derive(Debug, Clone)]
pub struct GroupNorm {
    weight: Param,
    bias: Param,
    groups: usize,
    eps: f64,
}

impl GroupNorm {
    /// Makes a layer over `channels` channels in `groups` groups.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, groups: usize, channels: usize, eps: f64) -> Result<Self> {
        let weight = scope.param("weight", channels, Init::ONES)?;
        Ok(Self { weight, bias: scope.param("bias", channels, Init::ZEROS)?, groups, eps })
    }

    /// Normalises [N, C, ..].
    ///
    /// # Errors
    /// If the groups do not divide the channels.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        ops::group_norm(tape, x, self.groups, &tape.param(&self.weight)?, &tape.param(&self.bias)?, self.eps)
    }
}
