//! A folder of adapters of peft, which is used together with the published model that it changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use phalanx_tensor::AdaptedLayer;
use toml::Value;

use crate::adapters::adapter_names;
use crate::error::WeightError;
use crate::peft::{self, PeftConfig, name_here};

/// The description of a published model in its folder.
pub const FOLDER_CONFIG: &str = "config.json";

/// A folder of adapters of peft.
#[derive(Debug, Clone)]
pub struct AdapterFolder {
    folder: PathBuf,
    config: PeftConfig,
    /// The last parts of the names of layers that have adapters.
    layers: BTreeSet<String>,
    /// The parameters that were trained themselves.
    trained: Vec<String>,
}

impl AdapterFolder {
    /// True if a folder has the description of adapters.
    pub fn is_at(folder: &Path) -> bool {
        folder.join(peft::CONFIG).is_file()
    }

    /// Opens a folder.
    ///
    /// # Errors
    /// If it cannot be read, or its adapters are of another form.
    pub fn open(folder: &Path) -> Result<Self, WeightError> {
        let config = PeftConfig::read(folder)?;
        let names = adapter_names(folder)?;
        let (mut layers, mut trained) = (BTreeSet::new(), Vec::new());
        for name in &names {
            let name = name_here(name);
            match AdaptedLayer::named_by(name) {
                Some(layer) => drop(layers.insert(layer.rsplit('.').next().unwrap_or(layer).to_owned())),
                None => trained.push(name.to_owned()),
            }
        }
        Ok(Self { folder: folder.to_owned(), config, layers, trained })
    }

    /// Returns the folder of the model that the adapters change, which their description names: from here, or from their folder. One that
    /// has a model comes before one that has none.
    ///
    /// # Errors
    /// [`WeightError::File`] if there is no such folder.
    pub fn base(&self) -> Result<PathBuf, WeightError> {
        let named = self.config.base_model_name_or_path.as_deref().unwrap_or_default();
        let places = [PathBuf::from(named), self.folder.join(named)];
        let folders: Vec<PathBuf> =
            places.into_iter().filter(|place| !named.is_empty() && place.is_dir()).collect();
        let with_model = folders.iter().find(|folder| folder.join(FOLDER_CONFIG).is_file());
        with_model.or(folders.first()).cloned().ok_or_else(|| {
            let problem = format!(
                "base_model_name_or_path is {named:?}, which is no folder here; set it to the folder of the model that the adapters change"
            );
            WeightError::File { path: self.folder.join(peft::CONFIG), problem }
        })
    }

    /// Returns the keys of a configuration that has these adapters, with their values.
    pub fn assignments(&self) -> Vec<(&'static str, Value)> {
        let list = |texts: Vec<&String>| {
            Value::Array(texts.into_iter().map(|text| Value::String(text.clone())).collect())
        };
        vec![
            ("lora.rank", Value::Integer(self.config.r as i64)),
            ("lora.alpha", Value::Float(self.config.alpha())),
            ("lora.layers", list(self.layers.iter().collect())),
            ("lora.trained", list(self.trained.iter().collect())),
            ("lora.from", Value::String(self.folder.display().to_string())),
        ]
    }
}
