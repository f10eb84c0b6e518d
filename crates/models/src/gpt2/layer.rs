//! A layer of GPT-2.

use phalanx_tensor::nn::{LayerNorm, Linear};
use phalanx_tensor::ops::{AttentionMask, AttentionOptions};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value, ops};

use super::Gpt2Config;
use crate::FeedForwardActivation;
use crate::cache::LayerCache;

/// x + attention(ln_1(x)), then x + mlp(ln_2(x)).
#[derive(Debug)]
pub(super) struct Layer {
    name: String,
    ln_1: LayerNorm,
    c_attn: Linear,
    attn_proj: Linear,
    ln_2: LayerNorm,
    c_fc: Linear,
    mlp_proj: Linear,
    activation: FeedForwardActivation,
    head_dim: usize,
    /// The heads of the whole layer.
    heads: usize,
    attention_dropout: f64,
    residual_dropout: f64,
}

impl Layer {
    pub(super) fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        let scope = scope.block();
        let (width, inner) = (config.width, config.inner);
        let normal = |std: f64| Init::Normal { mean: 0.0, std };
        // As the authors: what is added to the residual stream starts smaller, by the number of additions.
        let residual = 0.02 / (2.0 * config.layers as f64).sqrt();
        let zeros = Some(Init::ZEROS);
        let linear = |scope: &Scope, inputs, outputs, std| {
            Linear::inputs_first(scope, inputs, outputs, normal(std), zeros)
        };
        let (attn, mlp) = (scope.pp("attn"), scope.pp("mlp"));
        Ok(Self {
            name: scope.block_name().to_owned(),
            ln_1: LayerNorm::new(&scope.pp("ln_1"), width, config.eps)?,
            c_attn: linear(&attn.pp("c_attn"), width, 3 * width, 0.02)?,
            attn_proj: linear(&attn.pp("c_proj"), width, width, residual)?,
            ln_2: LayerNorm::new(&scope.pp("ln_2"), width, config.eps)?,
            c_fc: linear(&mlp.pp("c_fc"), width, inner, 0.02)?,
            mlp_proj: linear(&mlp.pp("c_proj"), inner, width, residual)?,
            activation: config.activation,
            head_dim: width / config.heads,
            heads: config.heads,
            attention_dropout: config.attention_dropout,
            residual_dropout: config.residual_dropout,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C], and in packed rows the column at which the text of each token begins.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.compute(tape, &inputs[0], inputs.get(1), None)?])
    }
}

impl Layer {
    /// Computes the states of new tokens, which see those of the cache and themselves.
    pub(super) fn compute(
        &self,
        tape: &Tape,
        x: &Value,
        starts: Option<&Value>,
        cache: Option<&mut LayerCache>,
    ) -> Result<Value> {
        let all = self.c_attn.forward(tape, &self.ln_1.forward(tape, x)?)?;
        let starts = starts.map(Value::array).transpose()?;
        let mask = AttentionMask { causal: true, starts, ..AttentionMask::default() };
        let options = AttentionOptions { mask, dropout: self.attention_dropout, heads: self.heads };
        let mixed = match cache {
            None => ops::self_attention(tape, &all, self.heads_of(&all), &options)?,
            Some(cache) => self.attention_after(tape, &all, cache, &options)?,
        };
        let mixed = self.attn_proj.forward(tape, &mixed)?;
        let x = ops::add(tape, x, &ops::dropout(tape, &mixed, self.residual_dropout)?)?;
        let hidden = self.c_fc.forward(tape, &self.ln_2.forward(tape, &x)?)?;
        let out = self.mlp_proj.forward(tape, &self.activation.apply(tape, &hidden)?)?;
        ops::add(tape, &x, &ops::dropout(tape, &out, self.residual_dropout)?)
    }

    /// Attention of queries, keys and values [N, T, 3C] to the cache and themselves.
    fn attention_after(
        &self,
        tape: &Tape,
        all: &Value,
        cache: &mut LayerCache,
        options: &AttentionOptions,
    ) -> Result<Value> {
        let [queries, keys, values] = ops::projected_heads(tape, all, self.heads_of(all))?;
        let [keys, values] = cache.extend(tape, &keys, &values)?;
        let mixed = ops::attention(tape, &queries, &keys, &values, options)?;
        let &[batch, length, heads, dim] = mixed.dims() else {
            return Err(TensorError::Shape { op: "gpt2", problem: format!("{:?}", mixed.shape()) });
        };
        ops::reshape(tape, &mixed, (batch, length, heads * dim))
    }

    /// The number of heads of a projection [N, T, 3C]: a rank may have some of them.
    fn heads_of(&self, all: &Value) -> usize {
        all.dims().last().copied().unwrap_or(0) / (3 * self.head_dim)
    }
}
