//! Compares the results of Phalanx with recorded values of the reference implementations.
//!
//! A reference file is JSON. It names the formula of its inputs ([`fill`]) and lists the outputs of PyTorch. [`check`]
//! finds the topic of a file and computes its quantities with the crates of this workspace. It returns every
//! [`Quantity`] with its worst relative error.
#![forbid(unsafe_code)]

mod arithmetic;
mod bert;
mod classifier;
mod clip_text;
mod codecs;
mod denoisers;
pub mod fill;
mod language;
mod losses;
mod network;
mod optimizers;
mod report;
mod samplers;
mod stackgan;
mod synchrony;
mod translation;
mod vision_transformer;

pub use report::Quantity;

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The reason why a file could not be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ParityError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not a known reference file.
    #[error("{}: {problem}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The missing or unknown item.
        problem: String,
    },
    /// Computing failed.
    #[error(transparent)]
    Tensor(#[from] phalanx_tensor::TensorError),
    /// The tokenizer failed.
    #[error(transparent)]
    Data(#[from] phalanx_data::DataError),
    /// Ranks could not train together, or a codec of gradients failed.
    #[error(transparent)]
    Sharding(#[from] phalanx_sharding::ShardingError),
    /// candle failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A reference file being compared.
#[derive(Debug, Clone, Copy)]
struct Reference<'a> {
    path: &'a Path,
    json: &'a Value,
    seed: u64,
}

impl Reference<'_> {
    fn number(&self, key: &str) -> Result<f64, ParityError> {
        self.json[key].as_f64().ok_or_else(|| self.lacks(key))
    }

    fn lacks(&self, key: &str) -> ParityError {
        ParityError::Unknown {
            path: self.path.to_owned(),
            problem: format!("`{key}` is missing or of a wrong type"),
        }
    }

    fn unknown(&self, what: &str, name: &str) -> ParityError {
        ParityError::Unknown {
            path: self.path.to_owned(),
            problem: format!("the {what} `{name}` is not known here"),
        }
    }
}

/// Compares one file.
///
/// # Errors
/// If the file cannot be read or has an unknown topic. A difference is not an error: see [`Quantity::passes`].
pub fn check(path: &Path) -> Result<Vec<Quantity>, ParityError> {
    let bytes = std::fs::read(path).map_err(|source| ParityError::Read { path: path.to_owned(), source })?;
    let unknown = |problem: String| ParityError::Unknown { path: path.to_owned(), problem };
    let json: Value = serde_json::from_slice(&bytes).map_err(|error| unknown(error.to_string()))?;
    match json["fill"].as_str() {
        Some("splitmix64-v1") => {}
        Some(other) => return Err(unknown(format!("the fill `{other}` is not known here"))),
        None => return Err(unknown("it names no `fill`".to_owned())),
    }
    let seed = json["seed"].as_u64().ok_or_else(|| unknown("it names no `seed`".to_owned()))?;
    let reference = Reference { path, json: &json, seed };
    if json.get("masked_lm").is_some() {
        bert::check(&reference)
    } else if json.get("l1_mean").is_some() {
        losses::check(&reference)
    } else if json.get("linear_alphas_cumprod").is_some() {
        samplers::check_schedules(&reference)
    } else if json.get("schedules").is_some() {
        samplers::check_samplers(&reference)
    } else if json.get("scripted").is_some() {
        synchrony::check(&reference)
    } else if json["model"].as_str().is_some_and(|model| model.starts_with("torch.nn.Transformer")) {
        translation::check_transformer(&reference)
    } else if json["model"].as_str().is_some_and(|model| model.starts_with("MarianMTModel")) {
        translation::check_marian(&reference)
    } else if json.get("runs").is_some() {
        optimizers::check(&reference)
    } else if json.get("topk_error_feedback").is_some() {
        codecs::check(&reference)
    } else if json.get("token_ids").is_some() {
        clip_text::check(&reference)
    } else if json["config"].get("gf_dim").is_some() {
        stackgan::check(&reference)
    } else if json["model"].as_str().is_some_and(|model| model.starts_with("GPT2LMHeadModel")) {
        language::check_gpt2(&reference)
    } else if json["model"].as_str().is_some_and(|model| {
        ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"]
            .iter()
            .any(|name| model.starts_with(name))
    }) {
        language::check_decoder(&reference)
    } else if json["model"].as_str().is_some_and(|model| model.contains("(diffusers)")) {
        denoisers::check(&reference)
    } else if json["model"].as_str().is_some_and(|model| model.starts_with("VisionTransformer")) {
        vision_transformer::check(&reference)
    } else if json.get("train_steps").is_some() {
        classifier::check(&reference)
    } else {
        Err(unknown("it is about nothing that this program can compute".to_owned()))
    }
}
