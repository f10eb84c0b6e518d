//! The `config.json` of published decoders.

use serde_json::{Map, Value, json};

use super::rotary::{RotaryConfig, RotaryScaling, YarnScaling};
use super::{DecoderConfig, ExpertsConfig};
use crate::published_config::{Keys, PublishedConfigError, Result};

impl DecoderConfig {
    /// Reads the `config.json` of a published Llama, Qwen2, Qwen3 or Mixtral.
    ///
    /// # Errors
    /// If a key is missing, or the model has a part that [`Decoder`](super::Decoder) has not: named by its key. A key that
    /// is not known is an error too.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut keys = Keys::parse(text)?;
        let family =
            keys.family(&["llama", "qwen2", "qwen3", "mixtral"], "llama, qwen2, qwen3 or mixtral")?;
        check_parts(&mut keys, &family)?;
        let (width, heads) = (keys.needed("hidden_size")?, keys.needed("num_attention_heads")?);
        let context = keys.needed("max_position_embeddings")?;
        let config = Self {
            vocab: keys.needed("vocab_size")?,
            context,
            width,
            layers: keys.needed("num_hidden_layers")?,
            heads,
            key_heads: keys.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim: keys.size("head_dim")?.unwrap_or(width / heads.max(1)),
            inner: keys.needed("intermediate_size")?,
            experts: if family == "mixtral" { Some(experts(&mut keys)?) } else { None },
            eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
            projection_bias: family == "qwen2",
            head_norms: family == "qwen3",
            tied: keys.flag("tie_word_embeddings")?.unwrap_or(false),
            rotary: rotary(&mut keys, context)?,
            init_std: keys.number("initializer_range")?.unwrap_or(0.02),
        };
        keys.finish(&family)?;
        Ok(config)
    }
}

impl DecoderConfig {
    /// Returns the `config.json` of the settings, for transformers. The family is Llama, Qwen2 with biases, Qwen3 with
    /// head norms, and Mixtral with experts.
    pub fn to_json(&self) -> Value {
        let (family, class) = match (self.head_norms, self.projection_bias) {
            _ if self.experts.is_some() => ("mixtral", "MixtralForCausalLM"),
            (true, _) => ("qwen3", "Qwen3ForCausalLM"),
            (false, true) => ("qwen2", "Qwen2ForCausalLM"),
            (false, false) => ("llama", "LlamaForCausalLM"),
        };
        let mut json = json!({
            "architectures": [class],
            "model_type": family,
            "vocab_size": self.vocab,
            "max_position_embeddings": self.context,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.inner,
            "hidden_act": "silu",
            "rms_norm_eps": self.eps,
            "initializer_range": self.init_std,
            "rope_theta": self.rotary.theta,
            "tie_word_embeddings": self.tied,
        });
        if let Some(ExpertsConfig { count, chosen }) = self.experts {
            json["num_local_experts"] = count.into();
            json["num_experts_per_tok"] = chosen.into();
        }
        if let Some(scaling) = scaling(&self.rotary.scaling) {
            json["rope_scaling"] = scaling;
        }
        json
    }
}

/// Describes the scaling of rotary positions, if there is any.
fn scaling(scaling: &RotaryScaling) -> Option<Value> {
    Some(match scaling {
        RotaryScaling::Default => return None,
        RotaryScaling::Linear { factor } => json!({"rope_type": "linear", "factor": factor}),
        RotaryScaling::Dynamic { factor, original } => json!({
            "rope_type": "dynamic", "factor": factor, "original_max_position_embeddings": original,
        }),
        RotaryScaling::Llama3 { factor, low, high, original } => json!({
            "rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high,
            "original_max_position_embeddings": original,
        }),
        RotaryScaling::Yarn(yarn) => json!({
            "rope_type": "yarn", "factor": yarn.factor, "original_max_position_embeddings": yarn.original,
            "beta_fast": yarn.fast, "beta_slow": yarn.slow, "attention_factor": yarn.attention,
            "truncate": yarn.truncate,
        }),
    })
}

/// Takes the keys of experts.
fn experts(keys: &mut Keys) -> Result<ExpertsConfig> {
    keys.only("router_jitter_noise", &0.0.into(), "0")?;
    // Whether training balances experts, and the factor of that loss: no part of the model.
    keys.take("output_router_logits");
    keys.take("router_aux_loss_coef");
    let count = keys.size("num_local_experts")?.unwrap_or(8);
    Ok(ExpertsConfig { count, chosen: keys.size("num_experts_per_tok")?.unwrap_or(2) })
}

/// Refuses parts that the model does not have.
fn check_parts(keys: &mut Keys, family: &str) -> Result<()> {
    keys.only("hidden_act", &"silu".into(), "silu")?;
    keys.only("attention_dropout", &0.0.into(), "0")?;
    keys.only("mlp_bias", &false.into(), "false")?;
    // Qwen2 has biases of queries, keys and values without a key; this one is of all four projections.
    keys.only("attention_bias", &false.into(), "false")?;
    if let Some(types) = keys.take("layer_types") {
        let full = |of: &Value| of.as_str() == Some("full_attention");
        if !types.as_array().is_some_and(|types| types.iter().all(full)) {
            return Keys::unsupported("layer_types", &types, "full_attention only");
        }
    }
    let windowed = keys.flag("use_sliding_window")?;
    let window = keys.take("sliding_window");
    match (windowed, window) {
        (Some(true), _) => Keys::unsupported("use_sliding_window", &true.into(), "false"),
        (None, Some(window)) if ["llama", "mixtral"].contains(&family) => {
            Keys::unsupported("sliding_window", &window, "null")
        }
        _ => Ok(()),
    }
}

/// Takes the keys of rotary positions: older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`.
fn rotary(keys: &mut Keys, context: usize) -> Result<RotaryConfig> {
    let theta = keys.number("rope_theta")?;
    let parts = ["rope_parameters", "rope_scaling"].map(|key| (key, keys.take(key)));
    let mut of = Keys { values: Map::new() };
    for (key, part) in parts {
        match part {
            Some(Value::Object(values)) => of.values.extend(values),
            Some(other) => return Keys::unsupported(key, &other, "an object"),
            None => {}
        }
    }
    let kind = of.take("rope_type").or_else(|| of.take("type"));
    of.take("type");
    of.only("partial_rotary_factor", &1.0.into(), "1")?;
    let theta = of.number("rope_theta")?.or(theta).unwrap_or(10_000.0);
    let kind = kind.unwrap_or_else(|| "default".into());
    let scaling = match kind.as_str() {
        Some("default") => RotaryScaling::Default,
        Some("linear") => RotaryScaling::Linear { factor: factor(&mut of)? },
        Some("dynamic") => RotaryScaling::Dynamic {
            factor: factor(&mut of)?,
            original: of.size("original_max_position_embeddings")?.unwrap_or(context),
        },
        Some("llama3") => RotaryScaling::Llama3 {
            factor: factor(&mut of)?,
            low: needed_number(&mut of, "low_freq_factor")?,
            high: needed_number(&mut of, "high_freq_factor")?,
            original: of.needed("original_max_position_embeddings")?,
        },
        Some("yarn") => RotaryScaling::Yarn(yarn(&mut of, context)?),
        _ => return Keys::unsupported("rope_type", &kind, "default, linear, dynamic, llama3 or yarn"),
    };
    of.finish("rope_parameters")?;
    Ok(RotaryConfig { theta, scaling })
}

fn needed_number(keys: &mut Keys, key: &'static str) -> Result<f64> {
    keys.number(key)?.ok_or(PublishedConfigError::Missing { key })
}

fn factor(keys: &mut Keys) -> Result<f64> {
    let factor = needed_number(keys, "factor")?;
    match factor >= 1.0 {
        true => Ok(factor),
        false => Keys::unsupported("factor", &factor.into(), "at least 1"),
    }
}

fn yarn(keys: &mut Keys, context: usize) -> Result<YarnScaling> {
    let factor = factor(keys)?;
    Ok(YarnScaling {
        factor,
        original: keys.size("original_max_position_embeddings")?.unwrap_or(context),
        fast: keys.number("beta_fast")?.unwrap_or(32.0),
        slow: keys.number("beta_slow")?.unwrap_or(1.0),
        attention: keys.number("attention_factor")?.unwrap_or_else(|| YarnScaling::default_attention(factor)),
        truncate: keys.flag("truncate")?.unwrap_or(true),
    })
}
