//! The sizes and the layout of a translation model.

use phalanx_tensor::{Result, TensorError, TensorPlan};

use crate::FeedForwardActivation;
use crate::projected_attention::check_sizes;

/// The names and the layout of the parameters, by the reference implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TranslationLayout {
    /// `MarianMTModel` of Hugging Face's transformers: one table of tokens for source, target and output; four projections
    /// for each attention; sines of positions in front of cosines; no norm behind the last layer.
    #[default]
    Marian,
    /// `torch.nn.Transformer` with a table for each side and a generator: one projection for queries, keys and values;
    /// sines and cosines of positions in turn; a norm behind the last layer.
    Torch,
}

/// The tokens that a translation model knows by their meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranslationTokens {
    /// Fills rows behind shorter texts.
    pub padding: u32,
    /// The first token that the decoder sees.
    pub start: u32,
    /// Ends a text.
    pub end: u32,
}

/// The settings of a translation model, by default those of the first Transformer's base model in Marian's layout.
#[derive(Debug, Clone, PartialEq)]
pub struct TranslationConfig {
    /// The number of tokens of the vocabulary.
    pub vocab: usize,
    /// The longest text of either side, in tokens.
    pub context: usize,
    /// The width of the token states.
    pub width: usize,
    /// The layers of the encoder.
    pub encoder_layers: usize,
    /// The layers of the decoder.
    pub decoder_layers: usize,
    /// The attention heads of the encoder.
    pub encoder_heads: usize,
    /// The attention heads of the decoder.
    pub decoder_heads: usize,
    /// The width of the hidden layers of the encoder's feed-forward parts.
    pub encoder_inner: usize,
    /// The width of the hidden layers of the decoder's feed-forward parts.
    pub decoder_inner: usize,
    /// The activation.
    pub activation: FeedForwardActivation,
    /// The dropout of embeddings, of attention weights, and of what a layer adds to its input.
    pub dropout: f64,
    /// The norm is in front of each part of a layer, not behind it.
    pub pre_norm: bool,
    /// The layout of the parameters.
    pub layout: TranslationLayout,
    /// The tokens with a meaning.
    pub tokens: TranslationTokens,
    /// The standard deviation of initial weights.
    pub init_std: f64,
}

impl Default for TranslationConfig {
    fn default() -> Self {
        Self {
            vocab: 32_000,
            context: 512,
            width: 512,
            encoder_layers: 6,
            decoder_layers: 6,
            encoder_heads: 8,
            decoder_heads: 8,
            encoder_inner: 2048,
            decoder_inner: 2048,
            activation: FeedForwardActivation::Silu,
            dropout: 0.1,
            pre_norm: false,
            layout: TranslationLayout::Marian,
            tokens: TranslationTokens { padding: 31_999, start: 31_999, end: 0 },
            init_std: 0.02,
        }
    }
}

impl TranslationConfig {
    /// Returns how the layers can be cut over ranks: attention by heads, and the feed-forward parts by their hidden layer.
    ///
    /// # Errors
    /// If encoder and decoder have different numbers of heads.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let (heads, others) = (self.encoder_heads, self.decoder_heads);
        if heads != others {
            let problem =
                format!("the encoder has {heads} heads and the decoder {others}; a plan has one number");
            return Err(TensorError::TensorPlan(problem));
        }
        let plan = match self.layout {
            TranslationLayout::Marian => TensorPlan::new([
                "model.shared = vocabulary",
                "model.*.q_proj = column:heads",
                "model.*.k_proj = column:heads",
                "model.*.v_proj = column:heads",
                "model.*.out_proj = row:heads",
                "model.*.fc1 = column",
                "model.*.fc2 = row",
            ]),
            TranslationLayout::Torch => TensorPlan::new([
                "src_embedding = vocabulary",
                "tgt_embedding = vocabulary",
                "generator = vocabulary",
                "transformer.*.in_proj_weight = column:projection",
                "transformer.*.in_proj_bias = column:projection",
                "transformer.*.out_proj = row:heads",
                "transformer.*.linear1 = column",
                "transformer.*.linear2 = row",
            ]),
        };
        Ok(plan?.with_heads(heads, heads))
    }

    /// Checks that the sizes make a model.
    pub(super) fn check(&self) -> Result<()> {
        let op = "translation";
        let sizes = [
            ("vocab", self.vocab),
            ("context", self.context),
            ("width", self.width),
            ("encoder_inner", self.encoder_inner),
            ("decoder_inner", self.decoder_inner),
        ];
        check_sizes(op, &sizes, self.width, self.encoder_heads)?;
        check_sizes(op, &sizes, self.width, self.decoder_heads)?;
        let TranslationTokens { padding, start, end } = self.tokens;
        match [padding, start, end].into_iter().find(|token| *token as usize >= self.vocab) {
            Some(token) => {
                let problem = format!("token {token} of a vocabulary of {}", self.vocab);
                Err(TensorError::Shape { op, problem })
            }
            None => Ok(()),
        }
    }
}
