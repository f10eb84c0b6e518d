//! BERT (Devlin et al. 2018): an encoder in which every token sees those before and behind it, trained to restore masked
//! tokens, and then to classify texts.

mod classifier;
mod config;
mod json;
mod layer;
mod masked;

use std::sync::Arc;

use phalanx_tensor::nn::{Embedding, LayerNorm, Linear};
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

use crate::run_block::run_block;
use layer::Layer;

pub use classifier::BertClassifier;
pub use config::BertConfig;
pub use masked::BertMasked;

/// The input of an encoder of texts.
#[derive(Debug, Clone)]
pub struct EncoderInput {
    /// The tokens, u32 [N, T], padded behind their lengths by any token.
    pub tokens: Value,
    /// The segment of each token, u32 [N, T].
    pub types: Value,
    /// The length of each sequence, u32 `[N]`. Tokens behind it are not seen.
    pub lengths: Value,
}

/// The sum of the embeddings of tokens, positions and segments, and its norm.
#[derive(Debug)]
struct Embeddings {
    name: String,
    /// The table, which the masked-token head also reads.
    tokens: Param,
    positions: Embedding,
    types: Embedding,
    norm: LayerNorm,
    dropout: f64,
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes tokens and segments, u32 [N, T].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let tokens = ops::embedding(tape, &tape.param(&self.tokens)?, &inputs[0].array()?)?;
        let &[rows, length, _] = tokens.dims() else {
            let problem = format!("tokens {:?}; they should be [N, T]", inputs[0].shape());
            return Err(TensorError::Shape { op: "bert", problem });
        };
        let columns: Vec<u32> = (0..length as u32).collect();
        let positions = self.positions.forward(tape, &columns)?;
        let types = self.types.forward(tape, &inputs[1].array()?)?;
        let positions = ops::broadcast_as(tape, &positions, (rows, length, positions.dims()[1]))?;
        let sum = ops::add(tape, &ops::add(tape, &tokens, &types)?, &positions)?;
        Ok(vec![ops::dropout(tape, &self.norm.forward(tape, &sum)?, self.dropout)?])
    }
}

/// BERT without a head, with the names of Hugging Face's transformers.
#[derive(Debug, Clone)]
pub struct Bert {
    config: BertConfig,
    /// The table of tokens, which lies in the first block.
    tokens: Param,
    /// The embeddings and the layers.
    blocks: Vec<Arc<dyn Block>>,
}

impl Bert {
    /// Registers the parameters: `bert.embeddings.…`, `bert.encoder.layer.{i}.…`.
    ///
    /// # Errors
    /// If a name is taken, the heads do not divide the width, or a size is 0.
    pub fn new(scope: &Scope, config: &BertConfig) -> Result<Self> {
        config.check()?;
        let normal = Init::Normal { mean: 0.0, std: config.init_std };
        let scope = scope.pp("bert");
        let first = scope.pp("embeddings").block();
        let width = config.width;
        let tokens = first.pp("word_embeddings").table("weight", (config.vocab, width), normal)?;
        let embeddings = Embeddings {
            name: first.block_name().to_owned(),
            tokens: tokens.clone(),
            positions: Embedding::new(&first.pp("position_embeddings"), config.context, width, normal)?,
            types: Embedding::new(&first.pp("token_type_embeddings"), config.types, width, normal)?,
            norm: LayerNorm::new(&first.pp("LayerNorm"), width, config.eps)?,
            dropout: config.hidden_dropout,
        };
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(embeddings)];
        let layers = scope.pp("encoder").pp("layer");
        for index in 0..config.layers {
            blocks.push(Arc::new(Layer::new(&layers.pp(index), config)?));
        }
        Ok(Self { config: config.clone(), tokens, blocks })
    }

    /// Returns the settings.
    pub fn config(&self) -> &BertConfig {
        &self.config
    }

    /// Returns the blocks. The first takes tokens and segments, the layers states [N, T, width] and the lengths `[N]`.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Computes the states of all tokens, [N, T, width].
    ///
    /// # Errors
    /// If the sequences are longer than the context, or a token or a segment is out of range.
    pub fn forward(&self, tape: &Tape, input: &EncoderInput) -> Result<Value> {
        let error = |problem: String| Err(TensorError::Shape { op: "bert", problem });
        let (tokens, context) = (input.tokens.dims(), self.config.context);
        match *tokens {
            [rows, _] if input.types.dims() != tokens || input.lengths.dims() != [rows] => {
                let (types, lengths) = (input.types.shape(), input.lengths.shape());
                return error(format!(
                    "tokens {tokens:?} with segments {types:?} and lengths {lengths:?}; expected [N, T] twice and [N]"
                ));
            }
            [_, length] if length > context => {
                return error(format!("{length} tokens; the context is {context}"));
            }
            [_, _] => {}
            _ => return error(format!("tokens {tokens:?}; they should be [N, T]")),
        }
        let (first, layers) = self
            .blocks
            .split_first()
            .ok_or_else(|| TensorError::Shape { op: "bert", problem: "it has no blocks".into() })?;
        let mut x = run_block(tape, first, &[input.tokens.clone(), input.types.clone()])?;
        x = ops::split_sequence(tape, &x)?;
        for layer in layers {
            x = run_block(tape, layer, &[x, input.lengths.clone()])?;
        }
        ops::join_sequence(tape, &x)
    }
}

/// Makes a linear layer with the initial values of the authors.
fn linear(scope: &Scope, inputs: usize, outputs: usize, config: &BertConfig) -> Result<Linear> {
    let weight = Init::Normal { mean: 0.0, std: config.init_std };
    Linear::with_init(scope, inputs, outputs, weight, Some(Init::ZEROS))
}
