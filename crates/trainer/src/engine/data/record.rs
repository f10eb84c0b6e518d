//! The record of a run's data in its folder, by which a resumption knows what has changed.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_data::Fingerprint;
use phalanx_run::{RunError, write_aside};
use serde::{Deserialize, Serialize};

use super::Data;
use crate::engine::TrainError;
use phalanx_config::Config;

/// The data of a run: the keys that name them, and the fingerprint of each split.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(in crate::engine) struct DataRecord {
    kind: String,
    path: String,
    splits: BTreeMap<String, Fingerprint>,
}

impl DataRecord {
    /// Takes the fingerprints of the images of a configuration. `None` if they are embedded, a user's own, or loaded by another rank.
    pub(in crate::engine) fn of(data: &Data, config: &Config) -> Result<Option<Self>, TrainError> {
        let Some(images) = data.images().filter(|_| !config.data.kind.is_embedded()) else { return Ok(None) };
        let root = Path::new(&config.data.path);
        let splits =
            images.splits().map(|(name, images)| Ok((name.to_owned(), Fingerprint::of(&**images, root)?)));
        Ok(Some(Self {
            kind: config.data.kind.to_string(),
            path: config.data.path.clone(),
            splits: splits.collect::<Result<_, TrainError>>()?,
        }))
    }

    /// Reads the record of an earlier attempt. `None` if there is none, or it is not readable: nothing is compared then.
    pub(in crate::engine) fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(file).ok()?).ok()
    }

    /// The classes of the training images, in the order of their labels.
    pub(in crate::engine) fn classes(&self) -> Option<&[String]> {
        self.splits.get("train").map(|split| split.classes.as_slice())
    }

    /// Writes the record.
    pub(in crate::engine) fn write(&self, file: &Path) -> Result<(), TrainError> {
        let json =
            serde_json::to_string_pretty(self).map_err(|error| TrainError::Setup(error.to_string()))?;
        write_aside(file, json.as_bytes()).map_err(|error| RunError::io("write", file)(error).into())
    }

    /// Describes the differences from the record of an earlier attempt.
    ///
    /// # Errors
    /// If the same data give a label another class, which the trained weights cannot mean.
    pub(in crate::engine) fn changes(&self, before: &Self) -> Result<Vec<String>, TrainError> {
        let mut lines = Vec::new();
        for (name, split) in &self.splits {
            let Some(split_before) = before.splits.get(name) else {
                lines.push(format!("{name}: {} samples (was absent)", split.samples));
                continue;
            };
            let is_same_place = self.kind == before.kind && self.path == before.path;
            if let Some(moved) = split.moved_class(split_before).filter(|_| is_same_place) {
                return Err(TrainError::Setup(format!(
                    "{}: label {} was `{}` in the run so far and is `{}` now; restore the classes, or begin a new run",
                    self.path, moved.label, moved.before, moved.now
                )));
            }
            lines.extend(split.differences(split_before).into_iter().map(|line| format!("{name}: {line}")));
        }
        let gone = before.splits.keys().filter(|name| !self.splits.contains_key(*name));
        lines
            .extend(gone.map(|name| format!("{name}: absent (was {} samples)", before.splits[name].samples)));
        Ok(lines)
    }
}
