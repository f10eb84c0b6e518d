//! The record of a run's data in its folder, by which a resumption knows what has changed.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_data::Fingerprint;
use phalanx_run::{RunError, write_aside};
use serde::{Deserialize, Serialize};

use crate::error::DatasetError;
use crate::images::ConfiguredImages;
use phalanx_config::Config;

/// The data of a run: the keys that name them, and the fingerprint of each split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataRecord {
    kind: String,
    path: String,
    splits: BTreeMap<String, Fingerprint>,
}

impl DataRecord {
    /// Takes the fingerprints of the images of a configuration. `None` if they are embedded.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn of(images: &ConfiguredImages, config: &Config) -> Result<Option<Self>, DatasetError> {
        if config.data.kind.is_embedded() {
            return Ok(None);
        }
        let root = Path::new(&config.data.path);
        let splits =
            images.splits().map(|(name, images)| Ok((name.to_owned(), Fingerprint::of(&**images, root)?)));
        Ok(Some(Self {
            kind: config.data.kind.to_string(),
            path: config.data.path.clone(),
            splits: splits.collect::<Result<_, DatasetError>>()?,
        }))
    }

    /// Reads the record of an earlier attempt. `None` if there is none, or it is not readable: nothing is compared then.
    pub fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }

    /// The classes of the training images, in the order of their labels.
    pub fn classes(&self) -> Option<&[String]> {
        self.splits.get("train").map(|split| split.classes.as_slice())
    }

    /// Writes the record.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), DatasetError> {
        let json =
            serde_json::to_string_pretty(self).map_err(|error| RunError::io("write", file)(error.into()))?;
        write_aside(file, json.as_bytes()).map_err(|error| RunError::io("write", file)(error).into())
    }

    /// Describes the differences from the record of an earlier attempt.
    ///
    /// # Errors
    /// If the same data give a label another class, which the trained weights cannot mean.
    pub fn changes(&self, before: &Self) -> Result<Vec<String>, DatasetError> {
        let mut lines = Vec::new();
        for (name, split) in &self.splits {
            let Some(split_before) = before.splits.get(name) else {
                lines.push(format!("{name}: {} samples (was absent)", split.samples));
                continue;
            };
            let is_same_place = self.kind == before.kind && self.path == before.path;
            if let Some(moved) = split.moved_class(split_before).filter(|_| is_same_place) {
                return Err(DatasetError::MovedClass {
                    path: self.path.clone(),
                    label: moved.label,
                    before: moved.before.to_owned(),
                    now: moved.now.to_owned(),
                });
            }
            lines.extend(split.differences(split_before).into_iter().map(|line| format!("{name}: {line}")));
        }
        let gone = before.splits.keys().filter(|name| !self.splits.contains_key(*name));
        lines
            .extend(gone.map(|name| format!("{name}: absent (was {} samples)", before.splits[name].samples)));
        Ok(lines)
    }
}
