//! The adapters of a trained model, for exports: merged into weights, or as a folder of peft.

use std::path::PathBuf;

use phalanx_config::Config;
use phalanx_tensor::{AdaptedLayer, Param, ParamStore};

use crate::error::WeightError;
use crate::peft::{self, PeftConfig};

/// The classes of transformers that load models, with the names of their tasks in peft.
const TASKS: [(&str, &str); 3] = [
    ("AutoModelForCausalLM", "CAUSAL_LM"),
    ("AutoModelForSequenceClassification", "SEQ_CLS"),
    ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
];

/// The adapters of a model, and the other parameters that were trained.
#[derive(Debug, Clone)]
pub struct ModelAdapters {
    layers: Vec<AdaptedLayer>,
    /// The names of the other parameters that were trained.
    trained: Vec<String>,
    description: PeftConfig,
}

impl ModelAdapters {
    /// The name of the description in a folder of peft.
    pub const DESCRIPTION: &'static str = peft::CONFIG;

    /// The name of the tensors in a folder of peft.
    pub const TENSORS: &'static str = peft::TENSORS;

    /// Finds the adapters in the stores of a model that `config` describes. `loader` is the class of transformers that loads the model,
    /// if there is one.
    #[must_use]
    pub fn of(stores: &[&ParamStore], config: &Config, loader: Option<&str>) -> Self {
        let layers = stores.iter().flat_map(|store| store.adapted_layers());
        let layers: Vec<AdaptedLayer> = layers.cloned().collect();
        let is_trained = |param: &&Param| param.trainable() && !param.is_adapter();
        let trained = stores.iter().flat_map(|store| store.params().iter().filter(is_trained));
        let trained: Vec<String> = trained.map(|param| param.name().to_owned()).collect();
        let description = describe(loader, config, &layers, &trained);
        Self { layers, trained, description }
    }

    /// The layers that have one.
    pub fn layers(&self) -> &[AdaptedLayer] {
        &self.layers
    }

    /// Returns the name in a folder of peft of a parameter; `None` for those that its base model has.
    pub fn name_there(&self, name: &str) -> Option<String> {
        let is_here = self.trained.iter().any(|trained| trained == name)
            || self.layers.iter().any(|layer| layer.a() == name || layer.b() == name);
        is_here.then(|| peft::name_there(name))
    }

    /// The description of a folder of peft, as JSON.
    ///
    /// # Errors
    /// If it cannot be written as JSON.
    pub fn description(&self) -> Result<String, WeightError> {
        let text = serde_json::to_string_pretty(&self.description);
        let failed = |error: serde_json::Error| WeightError::File {
            path: PathBuf::from(Self::DESCRIPTION),
            problem: error.to_string(),
        };
        text.map(|text| format!("{text}\n")).map_err(failed)
    }
}

/// Describes adapters as peft does.
fn describe(
    loader: Option<&str>,
    config: &Config,
    layers: &[AdaptedLayer],
    trained: &[String],
) -> PeftConfig {
    let lora = &config.lora;
    let known = TASKS.iter().find(|(class, _)| loader == Some(*class));
    let mut modules: Vec<String> =
        trained.iter().filter_map(|name| Some(name.rsplit_once('.')?.0.to_owned())).collect();
    modules.dedup();
    PeftConfig {
        task_type: known.map(|(_, task)| (*task).to_owned()),
        base_model_name_or_path: Some(config.model.weights.clone()).filter(|path| !path.is_empty()),
        r: lora.rank,
        lora_alpha: lora.alpha,
        lora_dropout: lora.dropout,
        target_modules: layers.iter().map(|layer| layer.name.as_str()).collect(),
        modules_to_save: Some(modules).filter(|modules| !modules.is_empty()),
        fan_in_fan_out: layers.iter().any(|layer| layer.inputs_first),
        ..PeftConfig::default()
    }
}
