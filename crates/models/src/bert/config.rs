//! The sizes of BERT.

use phalanx_tensor::{Result, TensorPlan};

use crate::FeedForwardActivation;
use crate::projected_attention::check_sizes;

/// The settings of a BERT, by default those of the published `bert-base-uncased`.
#[derive(Debug, Clone, PartialEq)]
pub struct BertConfig {
    /// The number of tokens of the vocabulary.
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The kinds of segments, such as question and answer.
    pub types: usize,
    /// The width of the token states.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The width of the hidden layer of each feed-forward part.
    pub inner: usize,
    /// The activation of the feed-forward parts and of the head for masked tokens.
    pub activation: FeedForwardActivation,
    /// Added to the variance in layer norms.
    pub eps: f64,
    /// The dropout of the embeddings and of what a layer adds to its input.
    pub hidden_dropout: f64,
    /// The dropout of attention weights.
    pub attention_dropout: f64,
    /// The standard deviation of initial weights.
    pub init_std: f64,
}

impl Default for BertConfig {
    fn default() -> Self {
        Self {
            vocab: 30_522,
            context: 512,
            types: 2,
            width: 768,
            layers: 12,
            heads: 12,
            inner: 3072,
            activation: FeedForwardActivation::Gelu,
            eps: 1e-12,
            hidden_dropout: 0.1,
            attention_dropout: 0.1,
            init_std: 0.02,
        }
    }
}

impl BertConfig {
    /// Sets one probability for both kinds of dropout.
    #[must_use]
    pub fn with_dropout(self, p: f64) -> Self {
        Self { hidden_dropout: p, attention_dropout: p, ..self }
    }

    /// Returns how the layers can be cut over ranks: attention by heads, and the feed-forward parts by their hidden layer.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let plan = TensorPlan::new([
            "bert.embeddings.word_embeddings = vocabulary",
            "cls.predictions.bias = vocabulary",
            "bert.encoder.layer.*.intermediate.dense = column",
            "bert.encoder.layer.*.output.dense = row",
            "bert.encoder.layer.*.attention.self.query = column:heads",
            "bert.encoder.layer.*.attention.self.key = column:heads",
            "bert.encoder.layer.*.attention.self.value = column:heads",
            "bert.encoder.layer.*.attention.output.dense = row:heads",
        ])?;
        Ok(plan.with_heads(self.heads, self.heads))
    }

    /// Checks that the sizes make a model.
    pub(super) fn check(&self) -> Result<()> {
        let Self { vocab, context, types, width, inner, .. } = *self;
        let sizes =
            [("vocab", vocab), ("context", context), ("types", types), ("width", width), ("inner", inner)];
        check_sizes("bert", &sizes, width, self.heads)
    }
}
