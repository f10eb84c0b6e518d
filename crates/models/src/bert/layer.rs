//! A layer of BERT.

use phalanx_tensor::nn::{LayerNorm, Linear};
use phalanx_tensor::ops::{AttentionMask, AttentionOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value, ops};

use super::{BertConfig, linear};
use crate::FeedForwardActivation;
use crate::projected_attention::ProjectedAttention;

/// norm(x + attention(x)), then norm(x + mlp(x)).
#[derive(Debug)]
pub(super) struct Layer {
    name: String,
    attention: ProjectedAttention,
    /// The heads of the whole layer.
    heads: usize,
    attention_norm: LayerNorm,
    intermediate: Linear,
    activation: FeedForwardActivation,
    output: Linear,
    output_norm: LayerNorm,
    hidden_dropout: f64,
    attention_dropout: f64,
}

impl Layer {
    pub(super) fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        let scope = scope.block();
        let BertConfig { width, inner, eps, .. } = *config;
        let (parts, result) = (scope.pp("attention").pp("self"), scope.pp("attention").pp("output"));
        let attention = ProjectedAttention {
            query: linear(&parts.pp("query"), width, width, config)?,
            key: linear(&parts.pp("key"), width, width, config)?,
            value: linear(&parts.pp("value"), width, width, config)?,
            out: linear(&result.pp("dense"), width, width, config)?,
            head_dim: width / config.heads,
        };
        let output = scope.pp("output");
        Ok(Self {
            name: scope.block_name().to_owned(),
            attention,
            heads: config.heads,
            attention_norm: LayerNorm::new(&result.pp("LayerNorm"), width, eps)?,
            intermediate: linear(&scope.pp("intermediate").pp("dense"), width, inner, config)?,
            activation: config.activation,
            output: linear(&output.pp("dense"), inner, width, config)?,
            output_norm: LayerNorm::new(&output.pp("LayerNorm"), width, eps)?,
            hidden_dropout: config.hidden_dropout,
            attention_dropout: config.attention_dropout,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C] and the length of each sequence `[N]`, u32. Tokens see those within the length.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = &inputs[0];
        let lengths = inputs.get(1).map(Value::array).transpose()?;
        let mask = AttentionMask { lengths, ..AttentionMask::default() };
        let options = AttentionOptions { mask, dropout: self.attention_dropout, heads: self.heads };
        let mixed = self.attention.forward(tape, x, x, &options)?;
        let mixed = ops::dropout(tape, &mixed, self.hidden_dropout)?;
        let x = self.attention_norm.forward(tape, &ops::add(tape, x, &mixed)?)?;
        let hidden = self.activation.apply(tape, &self.intermediate.forward(tape, &x)?)?;
        let out = ops::dropout(tape, &self.output.forward(tape, &hidden)?, self.hidden_dropout)?;
        Ok(vec![self.output_norm.forward(tape, &ops::add(tape, &x, &out)?)?])
    }
}
