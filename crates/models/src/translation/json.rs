//! The `config.json` of published Marian models.

use serde_json::{Value, json};

use super::{TranslationConfig, TranslationLayout, TranslationTokens};
use crate::FeedForwardActivation;
use crate::published_config::{Keys, PublishedConfigError, Result};

/// Keys of choices of tokens, of other programs, and of heads that are not part of the model.
const NEUTRAL: &[&str] = &[
    "_num_labels",
    "add_bias_logits",
    "bad_words_ids",
    "classif_dropout",
    "classifier_dropout",
    "decoder_vocab_size",
    "early_stopping",
    "extra_pos_embeddings",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "init_std",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "num_beams",
    "num_hidden_layers",
    "tokenizer_class",
];

/// The keys that have one value in all published models.
const FIXED: [(&str, bool); 10] = [
    ("add_final_layer_norm", false),
    ("do_blenderbot_90_layernorm", false),
    ("force_bos_token_to_be_generated", false),
    ("is_decoder", false),
    ("normalize_before", false),
    ("normalize_embedding", false),
    ("scale_embedding", true),
    ("share_encoder_decoder_embeddings", true),
    ("static_position_embeddings", true),
    ("tie_word_embeddings", true),
];

impl TranslationConfig {
    /// Reads the `config.json` of a published Marian model.
    ///
    /// # Errors
    /// If a key is missing or not known, or the model has a part that [`Translator`](super::Translator) has not: named by
    /// its key.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut keys = Keys::parse(text)?;
        let family = keys.family(&["marian"], "marian")?;
        for (key, value) in FIXED {
            keys.only(key, &value.into(), if value { "true" } else { "false" })?;
        }
        for key in ["encoder_layerdrop", "decoder_layerdrop", "activation_dropout"] {
            keys.only(key, &0.into(), "0")?;
        }
        let activation = keys.activation("activation_function")?.unwrap_or(FeedForwardActivation::Silu);
        // The dropout of attention weights is apart in these files; here it is that of the rest.
        keys.take("attention_dropout");
        let vocab = keys.needed("vocab_size")?;
        let token = |keys: &mut Keys, key: &'static str| -> Result<Option<u32>> {
            match keys.size(key)? {
                Some(token) if token >= vocab => {
                    Keys::unsupported(key, &token.into(), "a token of the vocabulary")
                }
                other => Ok(other.map(|token| token as u32)),
            }
        };
        let missing = |key| PublishedConfigError::Missing { key };
        let padding = token(&mut keys, "pad_token_id")?.ok_or_else(|| missing("pad_token_id"))?;
        let start = token(&mut keys, "decoder_start_token_id")?.unwrap_or(padding);
        let end = token(&mut keys, "eos_token_id")?.ok_or_else(|| missing("eos_token_id"))?;
        NEUTRAL.iter().for_each(|key| drop(keys.take(key)));
        let config = Self {
            vocab,
            context: keys.needed("max_position_embeddings")?,
            width: keys.needed("d_model")?,
            encoder_layers: keys.needed("encoder_layers")?,
            decoder_layers: keys.needed("decoder_layers")?,
            encoder_heads: keys.needed("encoder_attention_heads")?,
            decoder_heads: keys.needed("decoder_attention_heads")?,
            encoder_inner: keys.needed("encoder_ffn_dim")?,
            decoder_inner: keys.needed("decoder_ffn_dim")?,
            activation,
            dropout: keys.number("dropout")?.unwrap_or(0.1),
            pre_norm: false,
            layout: TranslationLayout::Marian,
            tokens: TranslationTokens { padding, start, end },
            init_std: 0.02,
        };
        keys.finish(&family)?;
        Ok(config)
    }

    /// Returns the `config.json` of the settings, for transformers. They have Marian's layout.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": ["MarianMTModel"],
            // The tokens are in a tokenizer.json; transformers would look for those of SentencePiece.
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_type": "marian",
            "is_encoder_decoder": true,
            "vocab_size": self.vocab,
            "decoder_vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "d_model": self.width,
            "encoder_layers": self.encoder_layers,
            "decoder_layers": self.decoder_layers,
            "encoder_attention_heads": self.encoder_heads,
            "decoder_attention_heads": self.decoder_heads,
            "encoder_ffn_dim": self.encoder_inner,
            "decoder_ffn_dim": self.decoder_inner,
            "activation_function": self.activation.name(),
            "dropout": self.dropout,
            "attention_dropout": self.dropout,
            "activation_dropout": 0.0,
            "encoder_layerdrop": 0.0,
            "decoder_layerdrop": 0.0,
            "scale_embedding": true,
            "share_encoder_decoder_embeddings": true,
            "static_position_embeddings": true,
            "tie_word_embeddings": true,
            "init_std": self.init_std,
            "pad_token_id": self.tokens.padding,
            "eos_token_id": self.tokens.end,
            "forced_eos_token_id": self.tokens.end,
            "decoder_start_token_id": self.tokens.start,
        })
    }

    /// Returns the name here of a tensor of a published Marian file: `None` for positions, which are computed, and for
    /// tensors that are the shared table.
    pub fn published_name(name: &str) -> Option<String> {
        let is_tied =
            ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"];
        let is_absent = is_tied.contains(&name) || name.ends_with(".embed_positions.weight");
        (!is_absent).then(|| name.to_owned())
    }
}
