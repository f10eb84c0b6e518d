//! The settings of decoders.

use phalanx_tensor::{Result, TensorError, TensorPlan};

use super::rotary::{RotaryConfig, RotaryScaling};

/// The number of experts of a layer, and of those that a token uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertsConfig {
    /// The experts of a layer.
    pub count: usize,
    /// The experts that a token uses, those with the highest scores; among equal scores the first.
    pub chosen: usize,
}

/// The settings of a [`Decoder`](super::Decoder), by default those of a small Llama.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderConfig {
    /// The number of rows of the table of tokens. Some published tables have more rows than their tokenizers have tokens.
    pub vocab: usize,
    /// The longest sequence, in tokens.
    pub context: usize,
    /// The width of the token states.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of heads of queries.
    pub heads: usize,
    /// The number of heads of keys and values, which divides `heads`.
    pub key_heads: usize,
    /// The width of a head.
    pub head_dim: usize,
    /// The width of the hidden layer of each feed-forward part, or of each of its experts.
    pub inner: usize,
    /// The experts of each feed-forward part (Mixtral); `None` for one part.
    pub experts: Option<ExpertsConfig>,
    /// Added to the mean square in norms.
    pub eps: f64,
    /// True if the projections to queries, keys and values have biases (Qwen2).
    pub projection_bias: bool,
    /// True if queries and keys are normalised head by head (Qwen3).
    pub head_norms: bool,
    /// True if the head is the table of tokens.
    pub tied: bool,
    /// The position embeddings.
    pub rotary: RotaryConfig,
    /// The standard deviation of initial weights.
    pub init_std: f64,
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self {
            vocab: 20_480,
            context: 1024,
            width: 384,
            layers: 8,
            heads: 6,
            key_heads: 2,
            head_dim: 64,
            inner: 1024,
            experts: None,
            eps: 1e-5,
            projection_bias: false,
            head_norms: false,
            tied: true,
            rotary: RotaryConfig { theta: 10_000.0, scaling: RotaryScaling::Default },
            init_std: 0.02,
        }
    }
}

impl DecoderConfig {
    /// Returns how the layers can be cut over ranks: attention by heads, and the feed-forward parts by their hidden layer.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let plan = TensorPlan::new([
            "model.embed_tokens = vocabulary",
            "lm_head = vocabulary",
            "model.layers.*.self_attn.q_proj = column:heads",
            "model.layers.*.self_attn.k_proj = column:key-heads",
            "model.layers.*.self_attn.v_proj = column:key-heads",
            "model.layers.*.self_attn.o_proj = row:heads",
        ])?;
        let plan = plan.with_heads(self.heads, self.key_heads);
        match self.experts {
            None => plan.with_rules([
                "model.layers.*.mlp.gate_proj = column",
                "model.layers.*.mlp.up_proj = column",
                "model.layers.*.mlp.down_proj = row",
            ]),
            Some(_) => plan.with_rules([
                "model.layers.*.experts.*.w1 = column",
                "model.layers.*.experts.*.w3 = column",
                "model.layers.*.experts.*.w2 = row",
            ]),
        }
    }

    /// Checks that the sizes make a model.
    pub(super) fn check(&self) -> Result<()> {
        let error = |problem: String| Err(TensorError::Shape { op: "decoder", problem });
        let sizes = [
            ("vocab", self.vocab),
            ("context", self.context),
            ("width", self.width),
            ("inner", self.inner),
            ("heads", self.heads),
            ("key_heads", self.key_heads),
            ("head_dim", self.head_dim),
        ];
        if let Some((name, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return error(format!("`{name}` is 0"));
        }
        if !self.heads.is_multiple_of(self.key_heads) {
            return error(format!(
                "{} heads of queries cannot share {} heads of keys",
                self.heads, self.key_heads
            ));
        }
        if let Some(ExpertsConfig { count, chosen }) = self.experts
            && !(1..=count).contains(&chosen)
        {
            return error(format!("a token cannot use {chosen} of {count} experts"));
        }
        if self.experts.is_some() && (self.projection_bias || self.head_norms) {
            return error("no published family has experts with biases or head norms".to_owned());
        }
        if !self.head_dim.is_multiple_of(2) {
            return error(format!("heads of {} elements; rotary positions turn pairs", self.head_dim));
        }
        Ok(())
    }
}
