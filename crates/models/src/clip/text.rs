//! The text encoder: a causal pre-norm transformer, read at the end-of-text token.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use phalanx_tensor::nn::{Embedding, LayerNorm, Linear, MultiHeadAttention};
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, Value, ops};

/// The settings of a text encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipTextConfig {
    /// The longest text, in tokens.
    pub context: usize,
    /// How many different tokens there are; the last is the end of text.
    pub vocab: usize,
    /// Width of the token states.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Transformer layers.
    pub layers: usize,
    /// Width of the pooled feature.
    pub embed: usize,
}

impl ClipTextConfig {
    /// The text encoder of ViT-B/32 and ViT-B/16.
    pub fn vit_b() -> Self {
        Self { context: 77, vocab: 49408, width: 512, heads: 8, layers: 12, embed: 512 }
    }

    /// The text encoder of ViT-L/14.
    pub fn vit_l() -> Self {
        Self { context: 77, vocab: 49408, width: 768, heads: 12, layers: 12, embed: 768 }
    }

    /// A small one that can be trained from scratch on short captions.
    pub fn small() -> Self {
        Self { context: 77, vocab: 49408, width: 64, heads: 4, layers: 2, embed: 64 }
    }
}

/// Token and position embeddings.
#[derive(Debug)]
struct Embeddings {
    name: String,
    token: Embedding,
    position: Param,
}

impl Embeddings {
    fn run(&self, tape: &Tape, ids: &Tensor) -> Result<Value> {
        let (_, length) = ids.dims2()?;
        let tokens = self.token.forward(tape, ids)?;
        let positions = ops::narrow(tape, &tape.param(&self.position)?, 0, 0, length)?;
        ops::broadcast_add(tape, &tokens, &positions)
    }
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.run(tape, &inputs[0].tensor()?)?])
    }
}

/// x + attention(ln_1(x)), then x + mlp(ln_2(x)).
#[derive(Debug)]
struct Layer {
    name: String,
    ln_1: LayerNorm,
    attn: MultiHeadAttention,
    ln_2: LayerNorm,
    c_fc: Linear,
    c_proj: Linear,
}

impl Layer {
    fn new(scope: &Scope, config: &ClipTextConfig) -> Result<Self> {
        let scope = scope.block();
        let width = config.width;
        let normal = |std: f64| Init::Normal { mean: 0.0, std };
        // The standard deviations of openai/CLIP's `initialize_parameters`.
        let attention = (width as f64).powf(-0.5);
        let project = attention * (2.0 * config.layers as f64).powf(-0.5);
        let expand = (2.0 * width as f64).powf(-0.5);
        let zeros = Some(Init::ZEROS);
        let mlp = scope.pp("mlp");
        let attn = scope.pp("attn");
        Ok(Self {
            name: scope.block_name().to_owned(),
            ln_1: LayerNorm::new(&scope.pp("ln_1"), width, 1e-5)?,
            attn: MultiHeadAttention::new(&attn, width, config.heads, normal(attention), normal(project))?,
            ln_2: LayerNorm::new(&scope.pp("ln_2"), width, 1e-5)?,
            c_fc: Linear::with_init(&mlp.pp("c_fc"), width, 4 * width, normal(expand), zeros)?,
            c_proj: Linear::with_init(&mlp.pp("c_proj"), 4 * width, width, normal(project), zeros)?,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = &inputs[0];
        let mixed = self.attn.forward(tape, &self.ln_1.forward(tape, x)?, true)?;
        let x = ops::add(tape, x, &mixed)?;
        let hidden = self.c_fc.forward(tape, &self.ln_2.forward(tape, &x)?)?;
        let out = self.c_proj.forward(tape, &ops::quick_gelu(tape, &hidden)?)?;
        Ok(vec![ops::add(tape, &x, &out)?])
    }
}

/// The final norm and the projection of the pooled state.
#[derive(Debug)]
struct Head {
    name: String,
    ln_final: LayerNorm,
    projection: Param,
}

/// What the encoder gives.
#[derive(Debug, Clone)]
pub struct TextFeatures {
    /// The feature of each text, [N, embed], not normalised.
    pub pooled: Value,
    /// The normalised state of every token, [N, T, width].
    pub tokens: Value,
}

/// CLIP's text encoder.
#[derive(Debug, Clone)]
pub struct ClipTextEncoder {
    config: ClipTextConfig,
    embeddings: Arc<Embeddings>,
    layers: Vec<Arc<Layer>>,
    head: Arc<Head>,
}

impl ClipTextEncoder {
    /// Registers the encoder's parameters under openai/CLIP's names: `token_embedding.weight`,
    /// `positional_embedding`, `transformer.resblocks.{i}.…`, `ln_final.…`, `text_projection`.
    ///
    /// # Errors
    /// If a name is taken or the heads do not divide the width.
    pub fn new(scope: &Scope, config: &ClipTextConfig) -> Result<Self> {
        let normal = |std: f64| Init::Normal { mean: 0.0, std };
        let first = scope.block_named("text_embedding");
        let token = Embedding::new(&first.pp("token_embedding"), config.vocab, config.width, normal(0.02))?;
        let position = first.param("positional_embedding", (config.context, config.width), normal(0.01))?;
        let embeddings = Arc::new(Embeddings { name: first.block_name().to_owned(), token, position });
        let blocks = scope.pp("transformer").pp("resblocks");
        let layers = (0..config.layers)
            .map(|index| Ok(Arc::new(Layer::new(&blocks.pp(index), config)?)))
            .collect::<Result<_>>()?;
        let last = scope.block_named("text_head");
        let ln_final = LayerNorm::new(&last.pp("ln_final"), config.width, 1e-5)?;
        let std = (config.width as f64).powf(-0.5);
        let projection = last.param("text_projection", (config.width, config.embed), normal(std))?;
        let head = Arc::new(Head { name: last.block_name().to_owned(), ln_final, projection });
        Ok(Self { config: config.clone(), embeddings, layers, head })
    }

    /// The settings.
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Features of token ids.
    ///
    /// Each row is start, tokens, end, then zeros; the text is read at its end token, the largest id of the row.
    /// Attention is causal, so what follows the end does not matter, and the columns behind the longest text of
    /// the batch are left out.
    ///
    /// # Shapes
    /// `ids` [N, T] of u32 with T at most `context`.
    ///
    /// # Errors
    /// If T is longer than the context or an id is out of range.
    pub fn forward(&self, tape: &Tape, ids: &Tensor) -> Result<TextFeatures> {
        let (_, length) = ids.dims2()?;
        if length > self.config.context {
            let problem = format!("{length} tokens; the context is {}", self.config.context);
            return Err(TensorError::Shape { op: "clip text encoder", problem });
        }
        let rows = ids.to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let ends: Vec<usize> = rows
            .iter()
            .map(|row| {
                let last = row.iter().max().copied().unwrap_or(0);
                row.iter().position(|id| *id == last).unwrap_or(0)
            })
            .collect();
        let longest = ends.iter().max().map_or(1, |end| end + 1);
        let ids = ids.narrow(1, 0, longest)?.contiguous()?;
        let mut x = tape.run1(&self.embeddings, &Value::constant(ids))?;
        for layer in &self.layers {
            x = tape.run1(layer, &x)?;
        }
        let head = Arc::new(Reader { head: self.head.clone(), ends });
        let mut out = tape.run(&head, &[x])?;
        match (out.pop(), out.pop()) {
            (Some(tokens), Some(pooled)) => Ok(TextFeatures { pooled, tokens }),
            _ => Err(TensorError::Backward("the text head gives two values".into())),
        }
    }
}

/// The head together with the positions of one batch.
struct Reader {
    head: Arc<Head>,
    ends: Vec<usize>,
}

impl Block for Reader {
    fn name(&self) -> &str {
        &self.head.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let tokens = self.head.ln_final.forward(tape, &inputs[0])?;
        let read = ops::select_positions(tape, &tokens, &self.ends)?;
        let projection = tape.param(&self.head.projection)?;
        Ok(vec![ops::matmul(tape, &read, &projection)?, tokens])
    }
}
