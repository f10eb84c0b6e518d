//! Decoders of the family of Llama (Touvron et al. 2023): pre-norm transformers with root mean square norms, rotary
//! positions, grouped heads and SwiGLU. From a published `config.json` they are Llama 2 and 3, Qwen2, Qwen3, or
//! Mixtral with its experts (Jiang et al. 2024).

mod config;
mod experts;
mod json;
mod layer;
mod projection;
mod rotary;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::loss::{CrossEntropyOptions, RowTargets};
use phalanx_tensor::nn::RmsNorm;
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

use crate::cache::KeyValueCache;
use crate::language_model::LanguageModel;
use crate::routed_states::RoutedStates;
use crate::run_block::run_block;
use crate::token_head::{HeadBias, TokenHead};
use crate::token_input::TokenInput;
use layer::{Layer, PerToken};

pub use config::{DecoderConfig, ExpertsConfig};
pub use rotary::{RotaryConfig, RotaryScaling, YarnScaling};

/// The table of token embeddings.
#[derive(Debug)]
struct Embeddings {
    name: String,
    tokens: Param,
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes tokens, u32 [N, T].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![ops::embedding(tape, &tape.param(&self.tokens)?, &inputs[0].array()?)?])
    }
}

/// The norm of the last states.
#[derive(Debug)]
struct FinalNorm {
    name: String,
    norm: RmsNorm,
}

impl Block for FinalNorm {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.norm.forward(tape, &inputs[0])?])
    }
}

/// A decoder, with the names of `LlamaForCausalLM`, `Qwen2ForCausalLM`, `Qwen3ForCausalLM` and `MixtralForCausalLM` of Hugging
/// Face's transformers; of the last, those in its files.
#[derive(Debug, Clone)]
pub struct Decoder {
    config: DecoderConfig,
    head: TokenHead,
    layers: Vec<Arc<Layer>>,
    /// The table of tokens, the layers and the norm.
    blocks: Vec<Arc<dyn Block>>,
}

impl Decoder {
    /// Registers the parameters: `model.embed_tokens.weight`, `model.layers.{i}.…`, `model.norm.weight`, and
    /// `lm_head.weight` unless it is tied to the table of tokens.
    ///
    /// # Errors
    /// If a name is taken, or the sizes make no model.
    pub fn new(scope: &Scope, config: &DecoderConfig) -> Result<Self> {
        config.check()?;
        let normal = Init::Normal { mean: 0.0, std: config.init_std };
        let model = scope.pp("model");
        let table = model.pp("embed_tokens");
        let name = table.block().block_name().to_owned();
        let tokens = table.block().table("weight", (config.vocab, config.width), normal)?;
        let layers = model.pp("layers");
        let layers = (0..config.layers)
            .map(|index| Ok(Arc::new(Layer::new(&layers.pp(index), config)?)))
            .collect::<Result<Vec<_>>>()?;
        let last = model.pp("norm").block();
        let norm = RmsNorm::new(&last, config.width, config.eps)?;
        let head = match config.tied {
            true => TokenHead { block: name.clone(), weight: tokens.clone(), bias: HeadBias::Absent },
            false => {
                let head = scope.pp("lm_head").block();
                let weight = head.table("weight", (config.vocab, config.width), normal)?;
                TokenHead { block: head.block_name().to_owned(), weight, bias: HeadBias::Absent }
            }
        };
        let embeddings: Arc<dyn Block> = Arc::new(Embeddings { name, tokens });
        let norm: Arc<dyn Block> = Arc::new(FinalNorm { name: last.block_name().to_owned(), norm });
        let of_layers = layers.iter().map(|layer| layer.clone() as Arc<dyn Block>);
        let blocks = std::iter::once(embeddings).chain(of_layers).chain([norm]).collect();
        Ok(Self { config: config.clone(), head, layers, blocks })
    }

    /// Returns the settings.
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }

    /// Returns the blocks: the table of tokens, the layers, which also take cosines and sines of positions, and the norm.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Computes the normalised states, and with the weights of tokens, f32 [N, T], how evenly they choose experts.
    fn states(&self, tape: &Tape, input: &TokenInput, weights: Option<&Value>) -> Result<RoutedStates> {
        let length = input.checked_length("decoder", self.config.context, 0)?;
        let [cos, sin] = self.angles(tape, input, length)?;
        let [first, layers @ .., last] = self.blocks.as_slice() else { return Err(absent()) };
        let mut x = run_block(tape, first, std::slice::from_ref(&input.tokens))?;
        x = ops::split_sequence(tape, &x)?;
        let mut balances = Vec::new();
        for layer in layers {
            let per_token = input.starts.iter().chain(weights).cloned();
            let inputs = [x, cos.clone(), sin.clone()].into_iter().chain(per_token);
            let mut outputs = tape.run(layer, &inputs.collect::<Vec<_>>())?.into_iter();
            x = outputs.next().ok_or_else(absent)?;
            balances.extend(outputs);
        }
        let hidden = ops::join_sequence(tape, &run_block(tape, last, &[x])?)?;
        Ok(RoutedStates { hidden, balance: mean(tape, balances)? })
    }

    /// Computes cosines and sines of the positions of texts of `length` tokens.
    fn angles(&self, tape: &Tape, input: &TokenInput, length: usize) -> Result<[Value; 2]> {
        let DecoderConfig { rotary, head_dim, .. } = self.config;
        let frequencies = rotary.frequencies(head_dim, length);
        ops::rotary_angles(tape, &input.positions.array()?, &frequencies, rotary.attention_factor())
    }
}

/// The mean of scalars; `None` of none.
fn mean(tape: &Tape, values: Vec<Value>) -> Result<Option<Value>> {
    let count = values.len();
    let mut values = values.into_iter();
    let Some(first) = values.next() else { return Ok(None) };
    let sum = values.try_fold(first, |sum, value| ops::add(tape, &sum, &value))?;
    Ok(Some(ops::scale(tape, &sum, 1.0 / count as f64)?))
}

/// The error of a block without a result.
fn absent() -> TensorError {
    TensorError::Backward("a block returned nothing".into())
}

impl LanguageModel for Decoder {
    fn vocab(&self) -> usize {
        self.config.vocab
    }

    fn context(&self) -> usize {
        self.config.context
    }

    fn hidden(&self, tape: &Tape, input: &TokenInput) -> Result<Value> {
        Ok(self.states(tape, input, None)?.hidden)
    }

    fn routed(&self, tape: &Tape, input: &TokenInput, weights: &[f32]) -> Result<RoutedStates> {
        let &[texts, length] = input.tokens.dims() else { return self.states(tape, input, None) };
        if weights.len() != texts * length {
            let problem = format!("{} weights for {texts} texts of {length} tokens", weights.len());
            return Err(TensorError::Shape { op: "decoder", problem });
        }
        let weights = match self.config.experts {
            Some(_) => Some(Value::constant(Tensor::from_slice(weights, (texts, length), &Device::Cpu)?)),
            None => None,
        };
        self.states(tape, input, weights.as_ref())
    }

    fn empty_cache(&self) -> KeyValueCache {
        KeyValueCache::new(self.config.layers)
    }

    /// # Errors
    /// Also if the frequencies of rotary positions follow the length of the text ([`RotaryScaling::Dynamic`]) and it grows
    /// beyond the original context: all keys would change.
    fn continue_hidden(&self, tape: &Tape, input: &TokenInput, cache: &mut KeyValueCache) -> Result<Value> {
        let length = input.checked_length("decoder", self.config.context, cache.length())?;
        if let RotaryScaling::Dynamic { original, .. } = self.config.rotary.scaling
            && length > original
            && cache.length() > 0
        {
            let problem = format!(
                "{length} tokens are more than the original context of {original}; go on without a cache"
            );
            return Err(TensorError::Shape { op: "decoder", problem });
        }
        let [cos, sin] = self.angles(tape, input, length)?;
        let [first, .., last] = self.blocks.as_slice() else { return Err(absent()) };
        let mut x = run_block(tape, first, std::slice::from_ref(&input.tokens))?;
        let new = input.tokens.dims()[1];
        let per_token = PerToken { starts: input.starts.as_ref(), weights: None };
        for (layer, cache) in self.layers.iter().zip(cache.grow(new)) {
            x = tape.run_as(layer.name(), &x, |x| {
                Ok(layer.compute(tape, x, [&cos, &sin], per_token, Some(cache))?.output)
            })?;
        }
        run_block(tape, last, &[x])
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
