//! `search.json`: the drawn trials of a sweep's searches, and how they ended.
//!
//! A sweep that continues takes drawn trials from it. So they stay the same if another number of runs trains at once,
//! and a stopped trial is not trained again.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::prune::StopDecision;
use phalanx_run::{Links, RunError, write_aside};

/// The record of all searches of a sweep.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct SearchRecord {
    /// By the part and the choices on its axes.
    pub searches: BTreeMap<String, RecordedSearch>,
}

/// The record of a search.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RecordedSearch {
    /// The settings of the search, without the number of trials: more can be added.
    pub settings: serde_json::Value,
    /// The trials, by number.
    pub trials: Vec<RecordedTrial>,
}

/// The record of a trial.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RecordedTrial {
    /// The number of earlier trials that it was drawn from and is judged against.
    pub seen: usize,
    /// The drawn settings, by key.
    pub values: BTreeMap<String, toml::Value>,
    /// Its end; missing while it trains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<RecordedEnd>,
}

/// The end of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedEnd {
    /// It was trained to its end. The measure, unless the search has none.
    Finished(Option<f64>),
    /// A rule stopped it.
    Pruned(StopDecision),
    /// It failed, or has no measure.
    Failed(String),
}

impl SearchRecord {
    fn path(folder: &Path) -> PathBuf {
        folder.join("search.json")
    }

    /// Reads the record of the sweep in `folder`; an empty one if there is none.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn read(folder: &Path) -> Result<Self, RunError> {
        let path = Self::path(folder);
        let bytes = match Links::Refuse.read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(RunError::Io { action: "read", path, source }),
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Malformed { path, problem: error.to_string() })
    }

    /// Writes the record atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), RunError> {
        let path = Self::path(folder);
        let malformed =
            |error: serde_json::Error| RunError::Malformed { path: path.clone(), problem: error.to_string() };
        let mut bytes = serde_json::to_vec_pretty(self).map_err(malformed)?;
        bytes.push(b'\n');
        write_aside(&path, &bytes).map_err(RunError::io("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(SearchRecord::read(folder.path()).expect("none"), SearchRecord::default());
        let values = [
            ("a.rate", toml::Value::Float(1.0)),
            ("b.width", toml::Value::Integer(8)),
            ("c.kind", toml::Value::String("sgd".into())),
            ("d.betas", toml::Value::Array(vec![toml::Value::Float(0.9), toml::Value::Float(0.99)])),
        ];
        let values: BTreeMap<_, _> = values.map(|(key, value)| (key.to_owned(), value)).into();
        let ends = [
            None,
            Some(RecordedEnd::Finished(Some(0.1 + 0.2))),
            Some(RecordedEnd::Pruned(StopDecision { step: 20, value: 1.5 })),
            Some(RecordedEnd::Failed("no memory".into())),
        ];
        let trials = ends.map(|end| RecordedTrial { seen: 3, values: values.clone(), end }).to_vec();
        let search = RecordedSearch { settings: serde_json::json!({ "seed": 1 }), trials };
        let record = SearchRecord { searches: [("1; ddp".to_owned(), search)].into() };
        record.write(folder.path()).expect("writes");
        assert_eq!(SearchRecord::read(folder.path()).expect("reads"), record);
        std::fs::write(folder.path().join("search.json"), "{").expect("writes");
        let error = SearchRecord::read(folder.path()).expect_err("damaged").to_string();
        assert!(error.contains("search.json"), "{error}");
    }
}
