//! A layer of the Vision Transformer.

use phalanx_tensor::nn::{LayerNorm, Linear, MultiHeadAttention};
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value, ops};

use super::VisionTransformerConfig;

/// x + attention(ln_1(x)), then x + mlp(ln_2(x)).
#[derive(Debug)]
pub(super) struct Layer {
    name: String,
    ln_1: LayerNorm,
    self_attention: MultiHeadAttention,
    ln_2: LayerNorm,
    expand: Linear,
    project: Linear,
    /// The heads of the whole layer.
    heads: usize,
    /// The width of the hidden layer, of all ranks that have a part of it.
    inner: usize,
    dropout: f64,
    attention_dropout: f64,
}

impl Layer {
    pub(super) fn new(scope: &Scope, config: &VisionTransformerConfig) -> Result<Self> {
        let scope = scope.block();
        let VisionTransformerConfig { width, heads, inner, dropout, attention_dropout, eps, .. } = *config;
        let xavier = Init::XavierUniform { gain: 1.0 };
        let small = Some(Init::Normal { mean: 0.0, std: 1e-6 });
        let attention = &scope.pp("self_attention");
        let mlp = scope.pp("mlp");
        Ok(Self {
            name: scope.block_name().to_owned(),
            ln_1: LayerNorm::new(&scope.pp("ln_1"), width, eps)?,
            self_attention: MultiHeadAttention::new(attention, width, heads, xavier, Init::TorchDefault)?,
            ln_2: LayerNorm::new(&scope.pp("ln_2"), width, eps)?,
            expand: Linear::with_init(&mlp.pp(0), width, inner, xavier, small)?,
            project: Linear::with_init(&mlp.pp(3), inner, width, xavier, small)?,
            heads,
            inner,
            dropout,
            attention_dropout,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes states [N, T, C].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = &inputs[0];
        let options = AttentionOptions {
            dropout: self.attention_dropout,
            heads: self.heads,
            ..AttentionOptions::default()
        };
        let mixed = self.self_attention.forward(tape, &self.ln_1.forward(tape, x)?, &options)?;
        let x = ops::add(tape, x, &ops::dropout(tape, &mixed, self.dropout)?)?;
        let hidden = ops::gelu(tape, &self.expand.forward(tape, &self.ln_2.forward(tape, &x)?)?)?;
        let hidden = ops::dropout_of_part(tape, &hidden, self.dropout, self.inner)?;
        let out = ops::dropout(tape, &self.project.forward(tape, &hidden)?, self.dropout)?;
        Ok(vec![ops::add(tape, &x, &out)?])
    }
}
