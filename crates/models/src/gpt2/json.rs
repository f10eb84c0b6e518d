//! The `config.json` of published GPT-2s.

use serde_json::{Value, json};

use super::Gpt2Config;
use crate::FeedForwardActivation;
use crate::published_config::{Keys, PublishedConfigError, Result};

/// Keys of heads that are not part of the model, and of choices of tokens.
const NEUTRAL: &[&str] = &[
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "task_specific_params",
    "gradient_checkpointing",
    "initializer_range",
    "n_ctx",
];

impl Gpt2Config {
    /// Reads the `config.json` of a published GPT-2.
    ///
    /// # Errors
    /// If a key is missing or not known, or the model has a part that [`Gpt2`](super::Gpt2) has not: named by its key.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut keys = Keys::parse(text)?;
        let family = keys.family(&["gpt2"], "gpt2")?;
        let activation = keys.activation("activation_function")?.unwrap_or(FeedForwardActivation::GeluTanh);
        keys.only("scale_attn_weights", &true.into(), "true")?;
        keys.only("scale_attn_by_inverse_layer_idx", &false.into(), "false")?;
        keys.only("reorder_and_upcast_attn", &false.into(), "false")?;
        keys.only("add_cross_attention", &false.into(), "false")?;
        keys.only("tie_word_embeddings", &true.into(), "true")?;
        NEUTRAL.iter().for_each(|key| drop(keys.take(key)));
        let width = keys.needed("n_embd")?;
        let dropout = |keys: &mut Keys, key| Ok::<_, PublishedConfigError>(keys.number(key)?.unwrap_or(0.1));
        let config = Self {
            vocab: keys.needed("vocab_size")?,
            context: keys.needed("n_positions")?,
            width,
            layers: keys.needed("n_layer")?,
            heads: keys.needed("n_head")?,
            inner: keys.size("n_inner")?.unwrap_or(4 * width),
            activation,
            eps: keys.number("layer_norm_epsilon")?.unwrap_or(1e-5),
            embedding_dropout: dropout(&mut keys, "embd_pdrop")?,
            attention_dropout: dropout(&mut keys, "attn_pdrop")?,
            residual_dropout: dropout(&mut keys, "resid_pdrop")?,
        };
        keys.finish(&family)?;
        Ok(config)
    }

    /// Returns the `config.json` of the settings, for transformers.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": self.vocab,
            "n_positions": self.context,
            "n_embd": self.width,
            "n_layer": self.layers,
            "n_head": self.heads,
            "n_inner": self.inner,
            "activation_function": self.activation.name(),
            "layer_norm_epsilon": self.eps,
            "embd_pdrop": self.embedding_dropout,
            "attn_pdrop": self.attention_dropout,
            "resid_pdrop": self.residual_dropout,
            "tie_word_embeddings": true,
        })
    }

    /// Returns the name here of a tensor of a published file, which may lack the prefix `transformer.`; `None` for masks and
    /// for the head, which is the table of tokens.
    pub fn published_name(name: &str) -> Option<String> {
        let bare = name.strip_prefix("transformer.").unwrap_or(name);
        let is_mask = bare.ends_with(".attn.bias") || bare.ends_with(".attn.masked_bias");
        (!is_mask && bare != "lm_head.weight").then(|| format!("transformer.{bare}"))
    }
}
