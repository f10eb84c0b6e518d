//! The format of adapters of Hugging Face's peft: a folder with `adapter_config.json` and `adapter_model.safetensors`.
//!
//! Source: `peft/tuners/lora/config.py` and `peft/utils/save_and_load.py`.

use std::path::{Path, PathBuf};

use phalanx_run::Links;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::WeightError;
use phalanx_config::LoraConfig;

/// The name of the description.
pub(crate) const CONFIG: &str = "adapter_config.json";

/// The name of the file of tensors.
pub(crate) const TENSORS: &str = "adapter_model.safetensors";

/// The name that older folders have.
const OLD_TENSORS: &str = "adapter_model.bin";

/// The beginning of the names of tensors: the wrapper, and its model.
const PREFIX: &str = "base_model.model.";

/// The description of adapters, as far as numbers depend on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct PeftConfig {
    /// `LORA`; other adapters are of another form.
    pub(crate) peft_type: String,
    pub(crate) task_type: Option<String>,
    pub(crate) base_model_name_or_path: Option<String>,
    pub(crate) r: usize,
    pub(crate) lora_alpha: f64,
    pub(crate) lora_dropout: f64,
    /// The names of layers, or their last parts; also a regular expression.
    pub(crate) target_modules: Value,
    /// Modules that are trained whole.
    pub(crate) modules_to_save: Option<Vec<String>>,
    pub(crate) bias: String,
    /// True if weights are [I, O].
    pub(crate) fan_in_fan_out: bool,
    /// The factor is α/√r.
    pub(crate) use_rslora: bool,
    /// Norms of weights are trained, too.
    pub(crate) use_dora: bool,
    /// Other ranks of single layers.
    pub(crate) rank_pattern: Map<String, Value>,
    /// Other α of single layers.
    pub(crate) alpha_pattern: Map<String, Value>,
}

impl Default for PeftConfig {
    fn default() -> Self {
        Self {
            peft_type: "LORA".to_owned(),
            task_type: None,
            base_model_name_or_path: None,
            r: 8,
            lora_alpha: 8.0,
            lora_dropout: 0.0,
            target_modules: Value::Null,
            modules_to_save: None,
            bias: "none".to_owned(),
            fan_in_fan_out: false,
            use_rslora: false,
            use_dora: false,
            rank_pattern: Map::new(),
            alpha_pattern: Map::new(),
        }
    }
}

impl PeftConfig {
    /// Reads the description of a folder.
    ///
    /// # Errors
    /// If it cannot be read, or says something that adapters here do not have.
    pub(crate) fn read(folder: &Path) -> Result<Self, WeightError> {
        let path = folder.join(CONFIG);
        let wrong = |problem: String| WeightError::File { path: path.clone(), problem };
        let text = Links::Follow.read_text(&path).map_err(|error| wrong(error.to_string()))?;
        let config: Self = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let Self { peft_type, bias, use_dora, rank_pattern, alpha_pattern, .. } = &config;
        let other = [
            (peft_type != "LORA", format!("peft_type = {peft_type}")),
            (bias != "none", format!("bias = {bias}")),
            (*use_dora, "use_dora = true".to_owned()),
            (!rank_pattern.is_empty(), "rank_pattern".to_owned()),
            (!alpha_pattern.is_empty(), "alpha_pattern".to_owned()),
            (config.r == 0, "r = 0".to_owned()),
        ];
        match other.into_iter().find(|(is_other, _)| *is_other) {
            Some((_, key)) => Err(wrong(format!("{key} is not supported: adapters are W + (α/r)·B·A"))),
            None => Ok(config),
        }
    }

    /// The numerator of the factor α/r.
    pub(crate) fn alpha(&self) -> f64 {
        if self.use_rslora { self.lora_alpha * (self.r as f64).sqrt() } else { self.lora_alpha }
    }

    /// Checks that the configured adapters have this rank and factor.
    ///
    /// # Errors
    /// [`WeightError::AdapterForm`] with the keys to set.
    pub(crate) fn check(&self, folder: &Path, lora: &LoraConfig) -> Result<(), WeightError> {
        let alpha = self.alpha();
        if (self.r, alpha) == (lora.rank, lora.alpha) {
            return Ok(());
        }
        Err(WeightError::AdapterForm {
            folder: folder.to_owned(),
            rank: self.r,
            alpha,
            configured_rank: lora.rank,
            configured_alpha: lora.alpha,
        })
    }
}

/// Returns the file of tensors in a folder.
pub(crate) fn tensors_of(folder: &Path) -> PathBuf {
    let (new, old) = (folder.join(TENSORS), folder.join(OLD_TENSORS));
    if !new.is_file() && old.is_file() { old } else { new }
}

/// Returns the name here of a tensor in a folder.
pub(crate) fn name_here(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}

/// Returns the name in a folder of a tensor here.
pub(crate) fn name_there(name: &str) -> String {
    format!("{PREFIX}{name}")
}
