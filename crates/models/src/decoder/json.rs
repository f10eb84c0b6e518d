//! The `config.json` of published decoders.

use serde_json::{Map, Value};

use super::DecoderConfig;
use super::rotary::{RotaryConfig, RotaryScaling, YarnScaling};

/// An error in the `config.json` of a decoder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecoderConfigError {
    /// It is no JSON object.
    #[error("no JSON object: {0}")]
    Json(String),
    /// A key is missing.
    #[error("`{key}` is missing")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A value is not supported.
    #[error("`{key}` is {value}; expected {expected}")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The supported values.
        expected: &'static str,
    },
    /// A key is not known, and may change the arithmetic.
    #[error("`{key}` is {value}, a key that is not known for `{family}`; it may change the arithmetic")]
    Unknown {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The type of the model.
        family: String,
    },
}

type Result<T> = std::result::Result<T, DecoderConfigError>;

/// Keys that do not change the arithmetic.
const NEUTRAL: &[&str] = &[
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "max_window_layers",
    "pad_token_id",
    "pretraining_tp",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// The keys of a JSON object, taken one by one, so that those left over are unknown.
struct Keys {
    values: Map<String, Value>,
}

impl Keys {
    fn unsupported<T>(key: &str, value: &Value, expected: &'static str) -> Result<T> {
        Err(DecoderConfigError::Unsupported { key: key.into(), value: value.to_string(), expected })
    }

    /// Takes a value that is not null.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key).filter(|value| !value.is_null())
    }

    fn number(&mut self, key: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Self::unsupported(key, &value, "a number"),
        }
    }

    fn size(&mut self, key: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Some(size)),
            None => Self::unsupported(key, &value, "a whole number"),
        }
    }

    fn needed(&mut self, key: &'static str) -> Result<usize> {
        self.size(key)?.ok_or(DecoderConfigError::Missing { key })
    }

    fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Self::unsupported(key, &value, "true or false"),
        }
    }

    /// Takes a key that may be absent, or have one value.
    fn only(&mut self, key: &str, supported: &Value, expected: &'static str) -> Result<()> {
        match self.take(key) {
            Some(value) if !same(&value, supported) => Self::unsupported(key, &value, expected),
            _ => Ok(()),
        }
    }

    /// Returns an error if a key was not taken.
    fn finish(self, family: &str) -> Result<()> {
        match self
            .values
            .into_iter()
            .find(|(key, value)| !value.is_null() && !NEUTRAL.contains(&key.as_str()))
        {
            Some((key, value)) => {
                Err(DecoderConfigError::Unknown { key, value: value.to_string(), family: family.into() })
            }
            None => Ok(()),
        }
    }
}

/// True if two values are equal, as numbers where they are.
fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

impl DecoderConfig {
    /// Reads the `config.json` of a published Llama, Qwen2 or Qwen3.
    ///
    /// # Errors
    /// If a key is missing, or the model has a part that [`Decoder`](super::Decoder) has not: named by its key. A key that
    /// is not known is an error too.
    pub fn from_json(text: &str) -> Result<Self> {
        let json = |problem: String| DecoderConfigError::Json(problem);
        let values = match serde_json::from_str(text).map_err(|error| json(error.to_string()))? {
            Value::Object(values) => values,
            other => return Err(json(other.to_string())),
        };
        let mut keys = Keys { values };
        let family = match keys.take("model_type") {
            Some(Value::String(family)) if ["llama", "qwen2", "qwen3"].contains(&family.as_str()) => family,
            Some(other) => return Keys::unsupported("model_type", &other, "llama, qwen2 or qwen3"),
            None => return Err(DecoderConfigError::Missing { key: "model_type" }),
        };
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
        (None, Some(window)) if family == "llama" => Keys::unsupported("sliding_window", &window, "null"),
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
    keys.number(key)?.ok_or(DecoderConfigError::Missing { key })
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
