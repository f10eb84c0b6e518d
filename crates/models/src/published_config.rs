//! The `config.json` of published models: keys one by one, so that those left over are unknown.

use serde_json::{Map, Value};

use crate::FeedForwardActivation;

/// An error in the `config.json` of a published model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishedConfigError {
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

pub(crate) type Result<T> = std::result::Result<T, PublishedConfigError>;

/// Keys that do not change the arithmetic.
const NEUTRAL: &[&str] = &[
    "_name_or_path",
    "architectures",
    "bos_token_id",
    "dtype",
    "eos_token_id",
    "phalanx",
    "max_window_layers",
    "pad_token_id",
    "pretraining_tp",
    "torch_dtype",
    "transformers_version",
    "use_cache",
];

/// The keys of a JSON object, taken one by one, so that those left over are unknown.
pub(crate) struct Keys {
    pub(crate) values: Map<String, Value>,
}

impl Keys {
    /// Parses a JSON object.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let json = |problem: String| PublishedConfigError::Json(problem);
        match serde_json::from_str(text).map_err(|error| json(error.to_string()))? {
            Value::Object(values) => Ok(Self { values }),
            other => Err(json(other.to_string())),
        }
    }

    /// Takes `model_type`, which must be one of `families`.
    pub(crate) fn family(&mut self, families: &[&str], expected: &'static str) -> Result<String> {
        match self.take("model_type") {
            Some(Value::String(family)) if families.contains(&family.as_str()) => Ok(family),
            Some(other) => Self::unsupported("model_type", &other, expected),
            None => Err(PublishedConfigError::Missing { key: "model_type" }),
        }
    }

    pub(crate) fn unsupported<T>(key: &str, value: &Value, expected: &'static str) -> Result<T> {
        Err(PublishedConfigError::Unsupported { key: key.into(), value: value.to_string(), expected })
    }

    /// Takes a value that is not null.
    pub(crate) fn take(&mut self, key: &str) -> Option<Value> {
        self.values.remove(key).filter(|value| !value.is_null())
    }

    pub(crate) fn number(&mut self, key: &'static str) -> Result<Option<f64>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Self::unsupported(key, &value, "a number"),
        }
    }

    pub(crate) fn size(&mut self, key: &'static str) -> Result<Option<usize>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_u64().and_then(|size| usize::try_from(size).ok()) {
            Some(size) => Ok(Some(size)),
            None => Self::unsupported(key, &value, "a whole number"),
        }
    }

    pub(crate) fn needed(&mut self, key: &'static str) -> Result<usize> {
        self.size(key)?.ok_or(PublishedConfigError::Missing { key })
    }

    pub(crate) fn flag(&mut self, key: &'static str) -> Result<Option<bool>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_bool() {
            Some(flag) => Ok(Some(flag)),
            None => Self::unsupported(key, &value, "true or false"),
        }
    }

    /// Takes the name of an activation.
    pub(crate) fn activation(&mut self, key: &'static str) -> Result<Option<FeedForwardActivation>> {
        let Some(value) = self.take(key) else { return Ok(None) };
        match value.as_str().and_then(FeedForwardActivation::named) {
            Some(activation) => Ok(Some(activation)),
            None => Self::unsupported(key, &value, FeedForwardActivation::EXPECTED),
        }
    }

    /// Takes a key that may be absent, or have one value.
    pub(crate) fn only(&mut self, key: &str, supported: &Value, expected: &'static str) -> Result<()> {
        match self.take(key) {
            Some(value) if !same(&value, supported) => Self::unsupported(key, &value, expected),
            _ => Ok(()),
        }
    }

    /// Returns an error if a key was not taken.
    pub(crate) fn finish(self, family: &str) -> Result<()> {
        match self
            .values
            .into_iter()
            .find(|(key, value)| !value.is_null() && !NEUTRAL.contains(&key.as_str()))
        {
            Some((key, value)) => {
                Err(PublishedConfigError::Unknown { key, value: value.to_string(), family: family.into() })
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
