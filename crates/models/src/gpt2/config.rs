//! The sizes of GPT-2.

use phalanx_tensor::{Result, TensorError, TensorPlan};

use crate::FeedForwardActivation;

/// The settings of a GPT-2, by default those of the smallest published one.
#[derive(Debug, Clone, PartialEq)]
pub struct Gpt2Config {
    /// The number of tokens of the vocabulary.
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The width of the token states.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The width of the hidden layer of each feed-forward part; published ones have four times `width`.
    pub inner: usize,
    /// The activation of the feed-forward parts.
    pub activation: FeedForwardActivation,
    /// Added to the variance in layer norms.
    pub eps: f64,
    /// The dropout of the sum of both embeddings.
    pub embedding_dropout: f64,
    /// The dropout of attention weights.
    pub attention_dropout: f64,
    /// The dropout of what a layer adds to its input.
    pub residual_dropout: f64,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            vocab: 50_257,
            context: 1024,
            width: 768,
            layers: 12,
            heads: 12,
            inner: 3072,
            activation: FeedForwardActivation::GeluTanh,
            eps: 1e-5,
            embedding_dropout: 0.1,
            attention_dropout: 0.1,
            residual_dropout: 0.1,
        }
    }
}

impl Gpt2Config {
    /// Returns the settings of a published model: `gpt2`, `gpt2-medium`, `gpt2-large` or `gpt2-xl`.
    pub fn named(name: &str) -> Option<Self> {
        let (layers, width, heads) = match name {
            "gpt2" => (12, 768, 12),
            "gpt2-medium" => (24, 1024, 16),
            "gpt2-large" => (36, 1280, 20),
            "gpt2-xl" => (48, 1600, 25),
            _ => return None,
        };
        Some(Self { layers, width, heads, inner: 4 * width, ..Self::default() })
    }

    /// Sets one probability for the three kinds of dropout.
    #[must_use]
    pub fn with_dropout(self, p: f64) -> Self {
        Self { embedding_dropout: p, attention_dropout: p, residual_dropout: p, ..self }
    }

    /// Returns how the layers can be cut over ranks: attention by heads, and the feed-forward parts by their hidden layer.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let plan = TensorPlan::new([
            "transformer.wte = vocabulary",
            "transformer.h.*.attn.c_attn = column:projection",
            "transformer.h.*.attn.c_proj = row:heads",
            "transformer.h.*.mlp.c_fc = column",
            "transformer.h.*.mlp.c_proj = row",
        ])?;
        Ok(plan.with_heads(self.heads, self.heads).with_inputs_first())
    }

    /// Checks that the sizes make a model.
    pub(super) fn check(&self) -> Result<()> {
        let Self { vocab, context, width, heads, inner, .. } = *self;
        if heads == 0 || !width.is_multiple_of(heads) {
            let problem = format!("{heads} heads do not divide a width of {width}");
            return Err(TensorError::Shape { op: "gpt2", problem });
        }
        match [("vocab", vocab), ("context", context), ("width", width), ("inner", inner)]
            .into_iter()
            .find(|(_, size)| *size == 0)
        {
            Some((name, _)) => Err(TensorError::Shape { op: "gpt2", problem: format!("`{name}` is 0") }),
            None => Ok(()),
        }
    }
}
