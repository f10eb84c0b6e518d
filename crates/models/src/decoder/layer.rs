//! A layer of a decoder.

use candle_core::DType;
use phalanx_tensor::nn::{Linear, RmsNorm};
use phalanx_tensor::ops::{AttentionMask, AttentionOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use super::DecoderConfig;
use super::experts::{Experts, Routed};
use super::projection::linear;
use crate::cache::LayerCache;

/// x + attention(norm(x)), then x + mlp(norm(x)).
#[derive(Debug)]
pub(super) struct Layer {
    name: String,
    input_norm: RmsNorm,
    attention: Attention,
    /// The heads of queries of the whole layer.
    heads: usize,
    mlp_norm: RmsNorm,
    feed_forward: FeedForward,
}

/// Facts of each token, [N, T].
#[derive(Clone, Copy, Default)]
pub(super) struct PerToken<'a> {
    /// In packed texts, the first key that the token sees.
    pub(super) starts: Option<&'a Value>,
    /// Its weight in the loss, if choices of experts are to be judged.
    pub(super) weights: Option<&'a Value>,
}

impl Layer {
    pub(super) fn new(scope: &Scope, config: &DecoderConfig) -> Result<Self> {
        let scope = scope.block();
        Ok(Self {
            name: scope.block_name().to_owned(),
            input_norm: RmsNorm::new(&scope.pp("input_layernorm"), config.width, config.eps)?,
            attention: Attention::new(&scope.pp("self_attn"), config)?,
            heads: config.heads,
            mlp_norm: RmsNorm::new(&scope.pp("post_attention_layernorm"), config.width, config.eps)?,
            feed_forward: FeedForward::new(&scope, config)?,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C], cosines and sines of positions; then for packed texts the first key of each query, u32 [N, T], and the
    /// weights of tokens, f32 [N, T], if choices of experts are to be judged. Returns states, and the balance if there is one.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let [x, cos, sin, rest @ ..] = inputs else {
            return Err(TensorError::Backward("a decoder's layer takes states and angles".into()));
        };
        let mut per_token = PerToken::default();
        for value in rest {
            match value.dtype()? {
                DType::U32 => per_token.starts = Some(value),
                _ => per_token.weights = Some(value),
            }
        }
        let Routed { output, balance } = self.compute(tape, x, [cos, sin], per_token, None)?;
        Ok(std::iter::once(output).chain(balance).collect())
    }
}

impl Layer {
    /// Computes the states of new tokens, which see those of the cache and themselves.
    pub(super) fn compute(
        &self,
        tape: &Tape,
        x: &Value,
        angles: [&Value; 2],
        per_token: PerToken<'_>,
        cache: Option<&mut LayerCache>,
    ) -> Result<Routed> {
        let starts = per_token.starts.map(Value::array).transpose()?;
        let options = AttentionOptions {
            mask: AttentionMask { causal: true, starts, ..AttentionMask::default() },
            heads: self.heads,
            ..AttentionOptions::default()
        };
        let normed = self.input_norm.forward(tape, x)?;
        let mixed = self.attention.forward(tape, &normed, angles, cache, &options)?;
        let x = ops::add(tape, x, &mixed)?;
        let normed = self.mlp_norm.forward(tape, &x)?;
        let routed = self.feed_forward.forward(tape, &normed, per_token.weights)?;
        Ok(Routed { output: ops::add(tape, &x, &routed.output)?, ..routed })
    }
}

/// Grouped attention with rotary positions, and with norms of queries and keys in some models.
#[derive(Debug)]
struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    head_norms: Option<[RmsNorm; 2]>,
    head_dim: usize,
}

impl Attention {
    fn new(scope: &Scope, config: &DecoderConfig) -> Result<Self> {
        let DecoderConfig { width, head_dim, projection_bias, init_std, .. } = *config;
        let project = |name: &str, heads: usize| {
            linear(&scope.pp(name), width, heads * head_dim, init_std, projection_bias)
        };
        let norm = |name: &str| RmsNorm::new(&scope.pp(name), head_dim, config.eps);
        Ok(Self {
            q: project("q_proj", config.heads)?,
            k: project("k_proj", config.key_heads)?,
            v: project("v_proj", config.key_heads)?,
            o: linear(&scope.pp("o_proj"), config.heads * head_dim, width, init_std, false)?,
            head_norms: config
                .head_norms
                .then(|| Ok::<_, TensorError>([norm("q_norm")?, norm("k_norm")?]))
                .transpose()?,
            head_dim,
        })
    }

    fn forward(
        &self,
        tape: &Tape,
        x: &Value,
        angles: [&Value; 2],
        cache: Option<&mut LayerCache>,
        options: &AttentionOptions,
    ) -> Result<Value> {
        // Keys and values that all ranks share are computed from all positions, too.
        let x = &ops::gather_sequence(tape, x)?;
        let (q, k, v) =
            (self.heads(tape, &self.q, x)?, self.heads(tape, &self.k, x)?, self.heads(tape, &self.v, x)?);
        let (q, k) = match &self.head_norms {
            Some([q_norm, k_norm]) => (q_norm.forward(tape, &q)?, k_norm.forward(tape, &k)?),
            None => (q, k),
        };
        let (q, k) = (ops::rotary(tape, &q, angles)?, ops::rotary(tape, &k, angles)?);
        let [k, v] = match cache {
            Some(cache) => cache.extend(tape, &k, &v)?,
            None => [k, v],
        };
        let mixed = ops::attention(tape, &q, &k, &v, options)?;
        let mut dims = mixed.dims().to_vec();
        dims.truncate(2);
        dims.push(mixed.shape().elem_count() / dims.iter().product::<usize>().max(1));
        self.o.forward(tape, &ops::reshape(tape, &mixed, dims)?)
    }

    /// Projects [N, T, C] to heads [N, T, H, D], as many as the layer has.
    fn heads(&self, tape: &Tape, layer: &Linear, x: &Value) -> Result<Value> {
        let projected = layer.forward(tape, x)?;
        let &[batch, length, width] = projected.dims() else {
            let problem = format!("expected [N, T, C], not {:?}", x.shape());
            return Err(TensorError::Shape { op: "decoder", problem });
        };
        ops::reshape(tape, &projected, (batch, length, width / self.head_dim, self.head_dim))
    }
}

/// The part of a layer that maps each state alone.
#[derive(Debug)]
enum FeedForward {
    Dense(Mlp),
    Experts(Experts),
}

impl FeedForward {
    fn new(scope: &Scope, config: &DecoderConfig) -> Result<Self> {
        Ok(match config.experts {
            None => Self::Dense(Mlp::new(&scope.pp("mlp"), config)?),
            Some(experts) => Self::Experts(Experts::new(&scope.pp("block_sparse_moe"), config, experts)?),
        })
    }

    fn forward(&self, tape: &Tape, x: &Value, weights: Option<&Value>) -> Result<Routed> {
        match self {
            Self::Dense(mlp) => Ok(Routed { output: mlp.forward(tape, x)?, balance: None }),
            Self::Experts(experts) => experts.forward(tape, x, weights),
        }
    }
}

/// down(silu(gate(x))·up(x)).
#[derive(Debug)]
struct Mlp {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Mlp {
    fn new(scope: &Scope, config: &DecoderConfig) -> Result<Self> {
        let DecoderConfig { width, inner, init_std, .. } = *config;
        Ok(Self {
            gate: linear(&scope.pp("gate_proj"), width, inner, init_std, false)?,
            up: linear(&scope.pp("up_proj"), width, inner, init_std, false)?,
            down: linear(&scope.pp("down_proj"), inner, width, init_std, false)?,
        })
    }

    fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let (gate, up) = (self.gate.forward(tape, x)?, self.up.forward(tape, x)?);
        self.down.forward(tape, &ops::swiglu(tape, &gate, &up)?)
    }
}
