//! Self- and cross-attention over the pixels of an image.

use phalanx_tensor::nn::{GroupNorm, Linear};
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value, ops};

use super::linear;

/// Multi-head attention with its projections: `to_q`, `to_k`, `to_v`, `to_out.0`.
#[derive(Debug)]
pub(super) struct Projections {
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
    heads: usize,
}

impl Projections {
    /// Registers attention of tokens of `width` elements to tokens of `seen` elements; `bias` applies to queries, keys
    /// and values.
    pub(super) fn new(
        scope: &Scope,
        (width, seen): (usize, usize),
        heads: usize,
        bias: bool,
        zero_init: bool,
    ) -> Result<Self> {
        if heads == 0 || !width.is_multiple_of(heads) {
            let problem = format!("{heads} heads do not divide a width of {width}");
            return Err(TensorError::Shape { op: "attention", problem });
        }
        let project = |name: &str, inputs: usize| {
            let bias = bias.then_some(Init::TorchBias { fan_in: inputs });
            Linear::with_init(&scope.pp(name), inputs, width, Init::TorchDefault, bias)
        };
        Ok(Self {
            to_q: project("to_q", width)?,
            to_k: project("to_k", seen)?,
            to_v: project("to_v", seen)?,
            to_out: linear(&scope.pp("to_out").pp(0), width, width, zero_init)?,
            heads,
        })
    }

    /// Attends from tokens [N, T, width] to [N, S, seen]; returns [N, T, width].
    pub(super) fn forward(&self, tape: &Tape, x: &Value, seen: &Value) -> Result<Value> {
        let split = |x: Value| -> Result<Value> {
            let &[batch, length, width] = x.dims() else {
                let problem = format!("expected [N, T, C], not {:?}", x.shape());
                return Err(TensorError::Shape { op: "attention", problem });
            };
            ops::reshape(tape, &x, (batch, length, self.heads, width / self.heads))
        };
        let q = split(self.to_q.forward(tape, x)?)?;
        let k = split(self.to_k.forward(tape, seen)?)?;
        let v = split(self.to_v.forward(tape, seen)?)?;
        let mixed = ops::attention(tape, &q, &k, &v, &AttentionOptions::default())?;
        self.to_out.forward(tape, &ops::reshape(tape, &mixed, x.shape().clone())?)
    }
}

/// Converts [N, C, H, W] to the tokens [N, H·W, C], row by row.
pub(super) fn to_tokens(tape: &Tape, x: &Value) -> Result<Value> {
    let &[batch, channels, height, width] = x.dims() else {
        let problem = format!("expected [N, C, H, W], not {:?}", x.shape());
        return Err(TensorError::Shape { op: "attention", problem });
    };
    let x = ops::reshape(tape, x, (batch, channels, height * width))?;
    ops::permute(tape, &x, &[0, 2, 1])
}

/// Converts tokens [N, H·W, C] to images of the shape of `like`.
pub(super) fn to_image(tape: &Tape, tokens: &Value, like: &Value) -> Result<Value> {
    let x = ops::permute(tape, tokens, &[0, 2, 1])?;
    ops::reshape(tape, &x, like.shape().clone())
}

/// The sizes of an [`Attention`].
#[derive(Debug, Clone, Copy)]
pub(in crate::diffusion) struct AttentionConfig {
    /// The channels.
    pub(in crate::diffusion) channels: usize,
    /// The heads.
    pub(in crate::diffusion) heads: usize,
    /// The groups of the norm.
    pub(in crate::diffusion) groups: usize,
    /// The constant added to the variance.
    pub(in crate::diffusion) eps: f64,
    /// Starts the output projection at zero.
    pub(in crate::diffusion) zero_init: bool,
}

/// Self-attention of an image with a norm before it and a skip connection: diffusers' `Attention` in blocks without
/// text (`group_norm`, `to_q`, `to_k`, `to_v`, `to_out.0`).
#[derive(Debug)]
pub(in crate::diffusion) struct Attention {
    name: String,
    group_norm: GroupNorm,
    projections: Projections,
}

impl Attention {
    pub(in crate::diffusion) fn new(scope: &Scope, config: AttentionConfig) -> Result<Self> {
        let scope = scope.block();
        let AttentionConfig { channels, heads, groups, eps, zero_init } = config;
        Ok(Self {
            group_norm: GroupNorm::new(&scope.pp("group_norm"), groups, channels, eps)?,
            projections: Projections::new(&scope, (channels, channels), heads, true, zero_init)?,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for Attention {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = &inputs[0];
        let tokens = to_tokens(tape, &self.group_norm.forward(tape, x)?)?;
        let mixed = self.projections.forward(tape, &tokens, &tokens)?;
        Ok(vec![ops::add(tape, &to_image(tape, &mixed, x)?, x)?])
    }
}
