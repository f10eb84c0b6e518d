//! GPT-2 (Radford et al. 2019): a causal pre-norm transformer with learned positions, whose output projection is the
//! table of token embeddings.

mod config;
mod json;
mod layer;

use std::sync::Arc;

use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::nn::{Embedding, LayerNorm};
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

use crate::cache::KeyValueCache;
use crate::language_model::LanguageModel;
use crate::token_head::{HeadBias, TokenHead};
use crate::token_input::TokenInput;
use layer::Layer;

pub use config::Gpt2Config;

/// Token and position embeddings, and their dropout.
#[derive(Debug)]
struct Embeddings {
    name: String,
    /// The table, which the head also reads.
    tokens: Param,
    positions: Embedding,
    dropout: f64,
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes tokens and positions, u32 [N, T].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let tokens = ops::embedding(tape, &tape.param(&self.tokens)?, &inputs[0].array()?)?;
        let positions = self.positions.forward(tape, &inputs[1].array()?)?;
        Ok(vec![ops::dropout(tape, &ops::add(tape, &tokens, &positions)?, self.dropout)?])
    }
}

/// The norm of the last states.
#[derive(Debug)]
struct FinalNorm {
    name: String,
    norm: LayerNorm,
}

impl Block for FinalNorm {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.norm.forward(tape, &inputs[0])?])
    }
}

/// GPT-2, with the names of `GPT2LMHeadModel` of Hugging Face's transformers.
#[derive(Debug, Clone)]
pub struct Gpt2 {
    config: Gpt2Config,
    /// The head, which is the table of tokens.
    head: TokenHead,
    layers: Vec<Arc<Layer>>,
    /// The embeddings, the layers and the last norm.
    blocks: Vec<Arc<dyn Block>>,
}

impl Gpt2 {
    /// Registers the parameters: `transformer.wte.weight`, `transformer.wpe.weight`, `transformer.h.{i}.…`,
    /// `transformer.ln_f.…`. The head reads the table of tokens in its block, that of the embeddings.
    ///
    /// # Errors
    /// If a name is taken, the heads do not divide the width, or a size is 0.
    pub fn new(scope: &Scope, config: &Gpt2Config) -> Result<Self> {
        config.check()?;
        let normal = |std: f64| Init::Normal { mean: 0.0, std };
        let scope = scope.pp("transformer");
        let first = scope.block_named("embeddings");
        let table = first.block_name().to_owned();
        let tokens = first.pp("wte").table("weight", (config.vocab, config.width), normal(0.02))?;
        let embeddings = Embeddings {
            name: table.clone(),
            tokens: tokens.clone(),
            positions: Embedding::new(&first.pp("wpe"), config.context, config.width, normal(0.01))?,
            dropout: config.embedding_dropout,
        };
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(embeddings)];
        let mut layers = Vec::with_capacity(config.layers);
        for index in 0..config.layers {
            let layer = Arc::new(Layer::new(&scope.pp("h").pp(index), config)?);
            blocks.push(layer.clone());
            layers.push(layer);
        }
        let last = scope.pp("ln_f").block();
        let norm = LayerNorm::new(&last, config.width, config.eps)?;
        blocks.push(Arc::new(FinalNorm { name: last.block_name().to_owned(), norm }));
        let head = TokenHead { block: table, weight: tokens, bias: HeadBias::Absent };
        Ok(Self { config: config.clone(), head, layers, blocks })
    }

    /// Returns the settings.
    pub fn config(&self) -> &Gpt2Config {
        &self.config
    }

    /// Returns the blocks. The first takes tokens and positions, the layers states [N, T, width] and, in packed rows, the
    /// column at which each token's text begins.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }
}

/// The error of a block without a result.
fn absent() -> TensorError {
    TensorError::Backward("a block returned nothing".into())
}

impl LanguageModel for Gpt2 {
    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn context(&self) -> usize {
        self.config.context
    }

    fn hidden(&self, tape: &Tape, input: &TokenInput) -> Result<Value> {
        input.checked_length("gpt2", self.config.context, 0)?;
        let (first, others) = self.blocks.split_first().ok_or_else(absent)?;
        let mut x =
            tape.run(first, &[input.tokens.clone(), input.positions.clone()])?.pop().ok_or_else(absent)?;
        x = ops::split_sequence(tape, &x)?;
        for block in others {
            let inputs: Vec<Value> = std::iter::once(x).chain(input.starts.clone()).collect();
            x = tape.run(block, &inputs)?.pop().ok_or_else(absent)?;
        }
        ops::join_sequence(tape, &x)
    }

    fn empty_cache(&self) -> KeyValueCache {
        KeyValueCache::new(self.config.layers)
    }

    fn continue_hidden(&self, tape: &Tape, input: &TokenInput, cache: &mut KeyValueCache) -> Result<Value> {
        input.checked_length("gpt2", self.config.context, cache.length())?;
        let [first, .., last] = self.blocks.as_slice() else { return Err(absent()) };
        let mut x =
            tape.run(first, &[input.tokens.clone(), input.positions.clone()])?.pop().ok_or_else(absent)?;
        let new = input.tokens.dims()[1];
        for (layer, cache) in self.layers.iter().zip(cache.grow(new)) {
            x = tape
                .run_as(layer.name(), &x, |x| layer.compute(tape, x, input.starts.as_ref(), Some(cache)))?;
        }
        tape.run(last, &[x])?.pop().ok_or_else(absent)
    }

    fn logits(&self, tape: &Tape, hidden: &Value) -> Result<Value> {
        self.head.logits(tape, hidden)
    }

    fn loss(
        &self,
        tape: &Tape,
        hidden: &Value,
        targets: &RowTargets<'_>,
        options: CrossEntropyOptions,
    ) -> Result<Value> {
        self.head.loss(tape, hidden, targets, options)
    }
}
