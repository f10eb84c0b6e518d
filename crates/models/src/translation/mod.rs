//! Translation: the encoder and decoder of the Transformer (Vaswani et al. 2017), in the layout of published Marian models
//! or of `torch.nn.Transformer`.

mod attention;
mod config;
mod embeddings;
mod json;
mod layer;
mod source;

use std::sync::Arc;

use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::nn::LayerNorm;
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorError, Value, ops};

use crate::run_block::run_block;
use crate::token_head::{HeadBias, TokenHead};
use embeddings::{Embeddings, FinalNorm};
use layer::{Layer, Side};

pub use config::{TranslationConfig, TranslationLayout, TranslationTokens};
pub use source::TranslationSource;

/// Texts to translate.
#[derive(Debug, Clone)]
pub struct SourceTexts {
    /// The tokens, u32 [N, S], padded behind their lengths by any token.
    pub tokens: Value,
    /// The length of each text, u32 `[N]`.
    pub lengths: Value,
}

/// A translation model.
#[derive(Debug, Clone)]
pub struct Translator {
    config: TranslationConfig,
    /// The embeddings of source and target.
    embeddings: [Arc<Embeddings>; 2],
    encoder: Vec<Arc<Layer>>,
    decoder: Vec<Arc<Layer>>,
    /// The norms behind the last layers, in a layout that has them.
    norms: Option<[Arc<FinalNorm>; 2]>,
    head: TokenHead,
}

impl Translator {
    /// Registers the parameters. In [Marian's layout](TranslationLayout::Marian): `model.shared.weight`,
    /// `model.encoder.layers.{i}.…`, `model.decoder.layers.{i}.…`, `final_logits_bias`. In that of
    /// [PyTorch](TranslationLayout::Torch): `src_embedding.weight`, `tgt_embedding.weight`, `transformer.…`,
    /// `generator.…`.
    ///
    /// # Errors
    /// If a name is taken, or the sizes make no model.
    pub fn new(scope: &Scope, config: &TranslationConfig) -> Result<Self> {
        config.check()?;
        let layers_of = match config.layout {
            TranslationLayout::Marian => scope.pp("model"),
            TranslationLayout::Torch => scope.pp("transformer"),
        };
        let embeddings = embeddings(scope, config)?;
        let layers = |side: Side, name: &str, count: usize| -> Result<Vec<Arc<Layer>>> {
            let scope = layers_of.pp(name).pp("layers");
            (0..count).map(|index| Ok(Arc::new(Layer::new(&scope.pp(index), config, side)?))).collect()
        };
        let encoder = layers(Side::Encoder, "encoder", config.encoder_layers)?;
        let decoder = layers(Side::Decoder, "decoder", config.decoder_layers)?;
        let norm = |name: &str| -> Result<Arc<FinalNorm>> {
            let scope = layers_of.pp(name).pp("norm").block();
            let norm = LayerNorm::new(&scope, config.width, 1e-5)?;
            Ok(Arc::new(FinalNorm { name: scope.block_name().to_owned(), norm }))
        };
        let norms = match config.layout {
            TranslationLayout::Marian => None,
            TranslationLayout::Torch => Some([norm("encoder")?, norm("decoder")?]),
        };
        let head = head(scope, config, &embeddings[1])?;
        Ok(Self { config: config.clone(), embeddings, encoder, decoder, norms, head })
    }

    /// Returns the settings.
    pub fn config(&self) -> &TranslationConfig {
        &self.config
    }

    /// Returns the blocks of the encoder: the first takes tokens, the layers states [N, S, width] and lengths `[N]`, and a
    /// last norm states alone.
    pub fn encoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.blocks(0, &self.encoder)
    }

    /// Returns the blocks of the decoder: the first takes tokens, the layers states [N, T, width], and states and lengths of
    /// the source; a last norm states alone.
    pub fn decoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.blocks(1, &self.decoder)
    }

    fn blocks(&self, side: usize, layers: &[Arc<Layer>]) -> Vec<Arc<dyn Block>> {
        let first: Arc<dyn Block> = self.embeddings[side].clone();
        let layers = layers.iter().map(|layer| layer.clone() as Arc<dyn Block>);
        let last = self.norms.iter().map(|norms| norms[side].clone() as Arc<dyn Block>);
        std::iter::once(first).chain(layers).chain(last).collect()
    }

    /// Computes the states of source texts, [N, S, width].
    ///
    /// # Errors
    /// If a text is longer than the context, or a token is out of range.
    pub fn encode(&self, tape: &Tape, source: &SourceTexts) -> Result<Value> {
        self.check_length(source.tokens.dims(), 0)?;
        self.run(tape, 0, &self.encoder, &source.tokens, &[&source.lengths])
    }

    /// Computes the states of target tokens, u32 [N, T], whose first column is the start token, from the states of the
    /// source: [N, T, width].
    ///
    /// # Errors
    /// If there are more tokens than the context, one is out of range, or the shapes do not match.
    pub fn decode(&self, tape: &Tape, states: &Value, lengths: &Value, targets: &Value) -> Result<Value> {
        self.check_length(targets.dims(), 0)?;
        self.run(tape, 1, &self.decoder, targets, &[states, lengths])
    }

    fn run(
        &self,
        tape: &Tape,
        side: usize,
        layers: &[Arc<Layer>],
        tokens: &Value,
        others: &[&Value],
    ) -> Result<Value> {
        let first: Arc<dyn Block> = self.embeddings[side].clone();
        let mut x = run_block(tape, &first, std::slice::from_ref(tokens))?;
        x = ops::split_sequence(tape, &x)?;
        for layer in layers {
            let layer: Arc<dyn Block> = layer.clone();
            let inputs: Vec<Value> =
                std::iter::once(x).chain(others.iter().map(|other| (*other).clone())).collect();
            x = run_block(tape, &layer, &inputs)?;
        }
        ops::join_sequence(tape, &self.finish(tape, side, x)?)
    }

    /// Applies the norm behind the last layer, if there is one.
    fn finish(&self, tape: &Tape, side: usize, x: Value) -> Result<Value> {
        let Some(norms) = &self.norms else { return Ok(x) };
        let norm: Arc<dyn Block> = norms[side].clone();
        run_block(tape, &norm, &[x])
    }

    /// Checks tokens [N, T] that follow `seen` ones.
    fn check_length(&self, dims: &[usize], seen: usize) -> Result<()> {
        let (op, context) = ("translation", self.config.context);
        match *dims {
            [_, length] if seen + length <= context => Ok(()),
            [_, length] => {
                let problem = format!("{} tokens; the context is {context}", seen + length);
                Err(TensorError::Shape { op, problem })
            }
            _ => Err(TensorError::Shape { op, problem: format!("tokens {dims:?}; they should be [N, T]") }),
        }
    }

    /// Computes the logits of the next token from [`Translator::decode`], [.., vocab].
    ///
    /// # Errors
    /// If the last dimension is not the width.
    pub fn logits(&self, tape: &Tape, states: &Value) -> Result<Value> {
        self.head.logits(tape, states)
    }

    /// Computes the cross-entropy of [`Translator::logits`] with the targets, a row for each token, without keeping logits.
    ///
    /// # Errors
    /// Errors of [`phalanx_tensor::loss::linear_cross_entropy`].
    pub fn loss(
        &self,
        tape: &Tape,
        states: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value> {
        self.head.loss(tape, states, targets, options)
    }
}

/// Registers the tables of source and target.
fn embeddings(scope: &Scope, config: &TranslationConfig) -> Result<[Arc<Embeddings>; 2]> {
    let TranslationConfig { vocab, width, layout, dropout, .. } = *config;
    let init = Init::Normal { mean: 0.0, std: config.init_std };
    let table = |scope: Scope, fixed: Option<u32>| -> Result<Arc<Embeddings>> {
        let scope = scope.block();
        let table = scope.table("weight", (vocab, width), init)?;
        Ok(Arc::new(Embeddings { name: scope.block_name().to_owned(), table, layout, width, fixed, dropout }))
    };
    match layout {
        TranslationLayout::Marian => {
            let shared = table(scope.pp("model").pp("shared"), Some(config.tokens.padding))?;
            Ok([shared.clone(), shared])
        }
        TranslationLayout::Torch => {
            Ok([table(scope.pp("src_embedding"), None)?, table(scope.pp("tgt_embedding"), None)?])
        }
    }
}

/// Registers the output projection, whose weight is the shared table in Marian's layout.
fn head(scope: &Scope, config: &TranslationConfig, target: &Embeddings) -> Result<TokenHead> {
    Ok(match config.layout {
        TranslationLayout::Marian => TokenHead {
            block: target.name.clone(),
            weight: target.table.clone(),
            bias: HeadBias::Fixed(scope.buffer("final_logits_bias", (1, config.vocab), 0.0)?),
        },
        TranslationLayout::Torch => {
            let generator = scope.pp("generator").block();
            let init = Init::Normal { mean: 0.0, std: config.init_std };
            TokenHead {
                block: generator.block_name().to_owned(),
                weight: generator.table("weight", (config.vocab, config.width), init)?,
                bias: HeadBias::Trained(generator.param("bias", config.vocab, Init::ZEROS)?),
            }
        }
    })
}
