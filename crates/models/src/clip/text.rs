//! The text encoder: a pre-norm transformer, causal in CLIP, whose output is read at the end-of-text token.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::nn::{Embedding, LayerNorm, Linear, MultiHeadAttention};
use phalanx_tensor::ops::AttentionOptions;
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, TensorError, TensorPlan, Value, ops};

/// The settings of a text encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipTextConfig {
    /// The longest text, in tokens.
    pub context: usize,
    /// The size of the vocabulary; the last token is the end of text.
    pub vocab: usize,
    /// The width of the token states.
    pub width: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The number of transformer layers.
    pub layers: usize,
    /// The width of the pooled feature.
    pub embed: usize,
    /// Tokens attend to themselves and earlier ones, as in CLIP; otherwise to all.
    pub causal: bool,
}

impl ClipTextConfig {
    /// Returns how the layers can be cut over ranks, wherever the encoder is in a network: attention by heads, and the feed-forward parts
    /// by their hidden layer.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let plan = TensorPlan::new([
            "*token_embedding = vocabulary",
            "*transformer.resblocks.*.attn.in_proj_weight = column:projection",
            "*transformer.resblocks.*.attn.in_proj_bias = column:projection",
            "*transformer.resblocks.*.attn.out_proj = row:heads",
            "*transformer.resblocks.*.mlp.c_fc = column",
            "*transformer.resblocks.*.mlp.c_proj = row",
        ])?;
        Ok(plan.with_heads(self.heads, self.heads))
    }

    /// Returns the settings of ViT-B/32 and ViT-B/16.
    pub fn vit_b() -> Self {
        Self { context: 77, vocab: 49408, width: 512, heads: 8, layers: 12, embed: 512, causal: true }
    }

    /// Returns the settings of ViT-L/14.
    pub fn vit_l() -> Self {
        Self { context: 77, vocab: 49408, width: 768, heads: 12, layers: 12, embed: 768, causal: true }
    }

    /// Returns small settings, for training from scratch on short captions.
    pub fn small() -> Self {
        Self { context: 77, vocab: 49408, width: 64, heads: 4, layers: 2, embed: 64, causal: true }
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
    causal: bool,
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
            causal: config.causal,
        })
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = &inputs[0];
        let options = if self.causal { AttentionOptions::causal() } else { AttentionOptions::default() };
        let mixed = self.attn.forward(tape, &self.ln_1.forward(tape, x)?, &options)?;
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

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes token states [N, T, width] and the position of each text's end `[N]`, u32. Returns pooled features and
    /// normalised states.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let ends: Vec<usize> =
            inputs[1].tensor()?.to_vec1::<u32>()?.into_iter().map(|end| end as usize).collect();
        let tokens = self.ln_final.forward(tape, &inputs[0])?;
        let read = ops::select_positions(tape, &tokens, &ends)?;
        let projection = tape.param(&self.projection)?;
        Ok(vec![ops::matmul(tape, &read, &projection)?, tokens])
    }
}

/// The outputs of the text encoder.
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
    /// The embeddings, the layers and the head.
    blocks: Vec<Arc<dyn Block>>,
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
        let position = first.table("positional_embedding", (config.context, config.width), normal(0.01))?;
        let name = first.block_name().to_owned();
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(Embeddings { name, token, position })];
        let layers = scope.pp("transformer").pp("resblocks");
        for index in 0..config.layers {
            blocks.push(Arc::new(Layer::new(&layers.pp(index), config)?));
        }
        let last = scope.block_named("text_head");
        let ln_final = LayerNorm::new(&last.pp("ln_final"), config.width, 1e-5)?;
        let std = (config.width as f64).powf(-0.5);
        let projection = last.param("text_projection", (config.width, config.embed), normal(std))?;
        blocks.push(Arc::new(Head { name: last.block_name().to_owned(), ln_final, projection }));
        Ok(Self { config: config.clone(), blocks })
    }

    /// Returns the blocks. The embeddings take ids [N, T]. The layers take and return one value [N, T, width]. The head
    /// takes that and the position `[N]` of each text's end (u32), and returns pooled features and token states.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Returns the settings.
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Computes features of token ids.
    ///
    /// Each row is start, tokens, end, then zeros. The text is read at its end token, the largest id of the row.
    /// Of a causal encoder later columns do not matter, and columns beyond the longest text of the batch are left out.
    /// Otherwise the zeros are tokens like others.
    ///
    /// # Shapes
    /// `ids` [N, T] of u32 with T at most `context`.
    ///
    /// # Errors
    /// If T is longer than the context or an id is out of range.
    pub fn forward(&self, tape: &Tape, ids: &Tensor) -> Result<TextFeatures> {
        self.run(tape, ids, false)
    }

    /// Like [`ClipTextEncoder::forward`], with the states of all T columns. The number of token states then does not
    /// depend on the other texts of the batch.
    ///
    /// # Errors
    /// If T is longer than the context or an id is out of range.
    pub fn forward_whole(&self, tape: &Tape, ids: &Tensor) -> Result<TextFeatures> {
        self.run(tape, ids, true)
    }

    fn run(&self, tape: &Tape, ids: &Tensor, whole: bool) -> Result<TextFeatures> {
        let (_, length) = ids.dims2()?;
        if length > self.config.context {
            let problem = format!("{length} tokens; the context is {}", self.config.context);
            return Err(TensorError::Shape { op: "clip text encoder", problem });
        }
        let rows = ids.to_dtype(DType::U32)?.to_vec2::<u32>()?;
        let ends: Vec<u32> = rows
            .iter()
            .map(|row| {
                let last = row.iter().max().copied().unwrap_or(0);
                row.iter().position(|id| *id == last).unwrap_or(0) as u32
            })
            .collect();
        let longest = ends.iter().max().map_or(1, |end| *end as usize + 1);
        let kept = if whole || !self.config.causal { length } else { longest };
        tape.backend().branch(kept as u64)?;
        let ids = ids.narrow(1, 0, kept)?.contiguous()?;
        let absent = || TensorError::Backward("the text head gives two values".into());
        let (head, sequence) = self.blocks.split_last().ok_or_else(absent)?;
        let x = tape.run_sequence(sequence, &Value::constant(ids))?;
        let count = ends.len();
        let ends = Value::constant(Tensor::from_vec(ends, count, &Device::Cpu)?);
        let mut out = tape.run(head, &[x, ends])?;
        let (tokens, pooled) = (out.pop().ok_or_else(absent)?, out.pop().ok_or_else(absent)?);
        Ok(TextFeatures { pooled, tokens })
    }
}
