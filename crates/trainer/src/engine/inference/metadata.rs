//! The description of an exported model in its file: all that is needed to use it again.

use std::path::Path;

use phalanx_tensor::io::TensorFile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::TrainError;
use phalanx_config::Config;
use phalanx_datasets::Preparation;

/// The key of the description in the metadata of a safetensors file and in `config.json`.
pub const METADATA_KEY: &str = "phalanx";

/// The version of the description.
const FORMAT: u32 = 1;

/// The keys outside of `[model]` that outputs, measures and samples of a trained model depend on.
const CARRIED: [&str; 13] = [
    "data.kind",
    "data.objects",
    "data.test_images",
    "data.normalise",
    "data.resize",
    "data.resize_mode",
    "data.resize_filter",
    "data.box_crop",
    "train.seed",
    "train.precision",
    "eval.limit",
    "eval.batch",
    "sample.columns",
];

/// The description of an exported model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelMetadata {
    format: u32,
    /// The settings: `model.kind` and the other keys of `[model]`, and those of the preparation of images. Paths are left out.
    pub settings: Map<String, Value>,
    /// The preparation of images, for other programs.
    pub images: ImageMetadata,
    /// The classes in the order of their labels; empty without classes.
    pub classes: Vec<String>,
    /// The steps that it was trained for.
    pub step: u64,
    /// True if the parameters are averages.
    pub averages: bool,
}

/// The preparation of images: resize, crop from the middle, normalise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageMetadata {
    /// Height and width of the images that the network gets.
    pub size: usize,
    /// The size that images are resized to first.
    pub resize: usize,
    /// `square` or `shorter-side`.
    pub resize_mode: String,
    /// The filter of the resize.
    pub resize_filter: String,
    /// True if the middle is cut out after the resize.
    pub center_crop: bool,
    /// The means of the channels, of values from 0 to 1.
    pub mean: [f32; 3],
    /// The standard deviations of the channels.
    pub std: [f32; 3],
}

impl ModelMetadata {
    /// Describes a model that was trained under `config`.
    ///
    /// # Errors
    /// If the preparation of images is not sound.
    pub fn new(config: &Config, classes: Vec<String>, step: u64, averages: bool) -> Result<Self, TrainError> {
        let keys = config.keys().into_iter().map(|key| key.path);
        let keys = keys.filter(|key| key.starts_with("model.") || CARRIED.contains(&key.as_str()));
        let mut settings = Map::new();
        for key in keys {
            let Some(value) = config.get(&key).filter(|value| !is_path(value)) else { continue };
            let value = match (key.as_str(), config.eval.batch) {
                // Sums of losses follow the batch, so the number of a run's own evaluation is written.
                ("eval.batch", 0) => Value::from(config.train.global_batch),
                _ => serde_json::to_value(&value).map_err(|error| TrainError::Setup(error.to_string()))?,
            };
            settings.insert(key, value);
        }
        let Preparation { size, resize, crops, normalise } = Preparation::of(config)?;
        let images = ImageMetadata {
            size,
            resize: resize.size as usize,
            resize_mode: resize.mode.to_string(),
            resize_filter: resize.filter.to_string(),
            center_crop: crops,
            mean: normalise.mean,
            std: normalise.std,
        };
        Ok(Self { format: FORMAT, settings, images, classes, step, averages })
    }

    /// Returns the description as JSON in one line.
    pub fn to_json(&self) -> String {
        // A struct of plain values is always written.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads the description of a safetensors file; `None` if it has none, or is no such file.
    ///
    /// # Errors
    /// If the description is damaged or of a later version.
    pub fn of_file(file: &Path) -> Result<Option<Self>, TrainError> {
        let Ok(opened) = TensorFile::open(file) else { return Ok(None) };
        let Some(text) = opened.metadata().get(METADATA_KEY) else { return Ok(None) };
        let json = serde_json::from_str(text);
        json.map_err(|error| damaged(file, &error)).and_then(|value| Self::from_value(file, value)).map(Some)
    }

    /// Reads the description in the `config.json` of an exported folder; `None` if it has none.
    ///
    /// # Errors
    /// If the file is no JSON, or the description is damaged or of a later version.
    pub fn of_config(file: &Path) -> Result<Option<Self>, TrainError> {
        let bytes = phalanx_run::Links::Follow.read(file);
        let bytes = bytes.map_err(|error| TrainError::Setup(format!("{}: {error}", file.display())))?;
        let mut json: Value = serde_json::from_slice(&bytes).map_err(|error| damaged(file, &error))?;
        match json.get_mut(METADATA_KEY).map(Value::take) {
            Some(value) => Self::from_value(file, value).map(Some),
            None => Ok(None),
        }
    }

    fn from_value(file: &Path, value: Value) -> Result<Self, TrainError> {
        let format = value.get("format").and_then(Value::as_u64);
        if let Some(format) = format.filter(|format| *format > u64::from(FORMAT)) {
            return Err(TrainError::Setup(format!(
                "{}: its description of the model has format {format}, and this program reads up to {FORMAT}",
                file.display()
            )));
        }
        serde_json::from_value(value).map_err(|error| damaged(file, &error))
    }

    /// Returns the settings as assignments of keys, `model.kind` first, since it chooses the other keys of `[model]`.
    ///
    /// # Errors
    /// If a value is none of a configuration.
    pub fn assignments(&self, file: &Path) -> Result<Vec<(String, toml::Value)>, TrainError> {
        let assignment = |(key, value): (&String, &Value)| {
            let value = serde_json::from_value(value.clone()).map_err(|error| damaged(file, &error))?;
            Ok((key.clone(), value))
        };
        let mut all = self.settings.iter().map(assignment).collect::<Result<Vec<_>, TrainError>>()?;
        all.sort_by_key(|(key, _)| key != "model.kind");
        Ok(all)
    }

    /// The model's kind.
    pub fn kind(&self) -> &str {
        self.settings.get("model.kind").and_then(Value::as_str).unwrap_or_default()
    }
}

/// True for a text that names a place of this machine.
fn is_path(value: &toml::Value) -> bool {
    value.as_str().is_some_and(|text| text.contains(std::path::is_separator))
}

fn damaged(file: &Path, error: &serde_json::Error) -> TrainError {
    TrainError::Setup(format!("{}: its description of the model is damaged: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_read_back_with_its_settings() {
        let mut config = Config::default();
        config.model.kind = "resnet18".to_owned();
        (config.model.image_size, config.data.resize) = (24, 32);
        config.data.path = "/home/someone/images".to_owned();
        config.train.global_batch = 48;
        let classes = vec!["cat".to_owned(), "dog".to_owned()];
        let metadata = ModelMetadata::new(&config, classes, 7, true).expect("sound");
        let file = Path::new("model.safetensors");
        let value = serde_json::from_str(&metadata.to_json()).expect("JSON");
        let read = ModelMetadata::from_value(file, value).expect("sound");
        assert_eq!((&read, read.kind()), (&metadata, "resnet18"));
        assert!((read.images.size, read.images.resize, read.images.center_crop) == (24, 32, true));
        let assignments = read.assignments(file).expect("values");
        assert_eq!(assignments[0].0, "model.kind");
        let of =
            |key: &str| assignments.iter().find(|(known, _)| known == key).map(|(_, value)| value.clone());
        assert_eq!(of("model.image_size"), Some(toml::Value::Integer(24)));
        assert_eq!(of("eval.batch"), Some(toml::Value::Integer(48)), "the batch of the run's evaluation");
        assert!(of("data.path").is_none() && !metadata.to_json().contains("someone"));
    }

    #[test]
    fn what_is_no_description_is_named() {
        let file = Path::new("model.safetensors");
        let read = |value| ModelMetadata::from_value(file, value).expect_err("no description").to_string();
        assert!(read(serde_json::json!({"format": 2})).contains("format 2, and this program reads up to 1"));
        assert!(read(serde_json::json!({"format": 1})).contains("model.safetensors: its description"));
    }
}
