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
    /// The width of a head. A rank may have some of the heads.
    head_dim: usize,
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
            head_dim: width / heads,
        })
    }

    /// Attends from tokens [N, T, width] to [N, S, seen]; returns [N, T, width].
    pub(super) fn forward(&self, tape: &Tape, x: &Value, seen: &Value) -> Result<Value> {
        let q = self.split(tape, &self.to_q.forward(tape, x)?)?;
        let k = self.split(tape, &self.to_k.forward(tape, seen)?)?;
        let v = self.split(tape, &self.to_v.forward(tape, seen)?)?;
        let mixed = ops::attention(tape, &q, &k, &v, &AttentionOptions::default())?;
        let &[batch, length, heads, dim] = mixed.dims() else {
            return Err(TensorError::Shape { op: "attention", problem: format!("{:?}", mixed.shape()) });
        };
        self.to_out.forward(tape, &ops::reshape(tape, &mixed, (batch, length, heads * dim))?)
    }

    /// Returns the shares [N, T, S] that tokens [N, T, width] take from each of [N, S, seen]: the mean of the heads' attention.
    pub(super) fn shares(&self, tape: &Tape, x: &Value, seen: &Value) -> Result<Value> {
        let q = self.split(tape, &self.to_q.forward(tape, x)?)?;
        let k = self.split(tape, &self.to_k.forward(tape, seen)?)?;
        let head = q.dims()[3] as f64;
        let (q, k) = (ops::permute(tape, &q, &[0, 2, 1, 3])?, ops::permute(tape, &k, &[0, 2, 3, 1])?);
        let scores = ops::scale(tape, &ops::matmul(tape, &q, &k)?, 1.0 / head.sqrt())?;
        let sum = ops::sum_over(tape, &ops::softmax(tape, &scores)?, 1)?;
        ops::scale(tape, &sum, 1.0 / scores.dims()[1] as f64)
    }

    /// Splits tokens [N, T, width] into [N, T, heads, width / heads].
    fn split(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let &[batch, length, width] = x.dims() else {
            let problem = format!("expected [N, T, C], not {:?}", x.shape());
            return Err(TensorError::Shape { op: "attention", problem });
        };
        ops::reshape(tape, x, (batch, length, width / self.head_dim, self.head_dim))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{Device, Tensor};
    use phalanx_tensor::{Array, BuildOptions, Context, Key, Session, StoreBuilder};

    use super::*;

    fn random(name: &str, dims: [usize; 3]) -> Value {
        let mut values = vec![0.0; dims.iter().product()];
        Key::new(1).stream(name).normal(0, &mut values);
        let values: Vec<f32> = values.into_iter().map(|value| value as f32).collect();
        Value::constant(Array::from(Tensor::from_vec(values, &dims[..], &Device::Cpu).expect("as many")))
    }

    #[test]
    fn shares_are_those_of_the_fused_attention() {
        let builder = StoreBuilder::new(BuildOptions::default());
        let scope = builder.root().pp("attn").block();
        let projections = Projections::new(&scope, (4, 6), 1, true, false).expect("fits");
        builder.build().expect("unique names");
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let (x, seen) = (random("x", [2, 5, 4]), random("seen", [2, 4, 6]));
        let shares = projections.shares(&tape, &x, &seen).expect("fits");
        assert_eq!(shares.dims(), [2, 5, 4]);
        // Values of which each token has one of its own turn the output into shares.
        let q = projections.split(&tape, &projections.to_q.forward(&tape, &x).expect("fits")).expect("fits");
        let k =
            projections.split(&tape, &projections.to_k.forward(&tape, &seen).expect("fits")).expect("fits");
        let own = Tensor::eye(4, candle_core::DType::F32, &Device::Cpu).expect("square");
        let own = Tensor::stack(&[&own, &own], 0).and_then(|own| own.reshape((2, 4, 1, 4))).expect("as many");
        let v = Value::constant(Array::from(own.contiguous().expect("fits")));
        let fused = ops::attention(&tape, &q, &k, &v, &AttentionOptions::default()).expect("fits");
        let numbers = |value: &Value| {
            let flat = value.to_host().expect("on the host").flatten_all().expect("any shape");
            flat.to_vec1::<f32>().expect("f32")
        };
        for (own, fused) in numbers(&shares).iter().zip(numbers(&fused)) {
            assert!((own - fused).abs() < 1e-6, "{own} {fused}");
        }
    }
}
