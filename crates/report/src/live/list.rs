//! The list of runs in a folder, with all keys for sorting and filtering.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_run::Links;
use serde::Serialize;
use serde_json::{Map, Value};

use super::served_folder::ServedFolder;
use crate::{is_run, run_state};

/// The maximum depth of the search for runs.
const DEPTH: usize = 8;
/// The maximum number of listed runs.
const MAX_RUNS: usize = 10_000;
/// The number of bytes at the end of the metrics that are searched for the last line.
const LAST_BYTES: u64 = 1 << 16;

/// A run in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Entry {
    /// Its path relative to the served folder.
    pub(super) path: String,
    /// The status.
    state: &'static str,
    /// The time of the last write, in seconds since 1970.
    written: f64,
    /// Its values by key: `config.train.ranks`, `summary.world_size`, `metrics.loss`.
    keys: Map<String, Value>,
}

/// The modification times and lengths of files. Unchanged files are not read again.
type FileStamps = Vec<Option<(SystemTime, u64)>>;

/// The cached list of runs.
#[derive(Debug, Default)]
pub(super) struct List {
    known: BTreeMap<PathBuf, (FileStamps, Map<String, Value>)>,
}

/// The files from which an entry is made.
const FILES: [&str; 3] = ["config.toml", "summary.json", "metrics.jsonl"];

impl List {
    /// Returns all runs, sorted by path.
    pub(super) fn refresh(&mut self, served: &ServedFolder) -> Vec<Entry> {
        let mut folders = Vec::new();
        find(served.root(), DEPTH, &mut folders);
        folders.sort();
        self.known.retain(|path, _| folders.binary_search(path).is_ok());
        folders
            .into_iter()
            .filter(|folder| served.holds_run(folder))
            .filter_map(|folder| self.entry(served, &folder))
            .collect()
    }

    fn entry(&mut self, served: &ServedFolder, folder: &Path) -> Option<Entry> {
        let stamp: FileStamps = FILES
            .iter()
            .map(|name| {
                let metadata = std::fs::metadata(folder.join(name)).ok()?;
                Some((metadata.modified().ok()?, metadata.len()))
            })
            .collect();
        let written = stamp.iter().flatten().map(|(time, _)| *time).max().unwrap_or(UNIX_EPOCH);
        let keys = match self.known.get(folder) {
            Some((known, keys)) if *known == stamp => keys.clone(),
            _ => {
                let keys = keys(folder);
                self.known.insert(folder.to_owned(), (stamp, keys.clone()));
                keys
            }
        };
        let last = keys.get("metrics.step").and_then(Value::as_u64).unwrap_or_default();
        let summary =
            Map::from_iter(["step", "status"].iter().filter_map(|name| {
                Some(((*name).to_owned(), keys.get(&format!("summary.{name}"))?.clone()))
            }));
        let relative = folder.strip_prefix(served.root()).ok()?;
        Some(Entry {
            path: relative.to_str()?.to_owned(),
            state: run_state(folder, &Value::Object(summary), last),
            written: written.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            keys,
        })
    }
}

/// Searches for runs. Symbolic links are not followed.
fn find(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) {
    let is_one = is_run(folder);
    if is_one {
        found.push(folder.to_owned());
    }
    if depth == 0 || found.len() >= MAX_RUNS {
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // A run contains at most one other run: the run of its first stage.
        let wanted = !is_one || name == "first";
        if wanted && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), depth - 1, found);
        }
    }
}

/// Reads the values of a run by key.
fn keys(folder: &Path) -> Map<String, Value> {
    let mut keys = Map::new();
    let config = Links::Refuse.read_text(&folder.join("config.toml")).unwrap_or_default();
    if let Some(config) =
        config.parse::<toml::Table>().ok().and_then(|table| serde_json::to_value(table).ok())
    {
        flatten("config", config, &mut keys);
    }
    let summary = Links::Refuse.read(&folder.join("summary.json")).ok();
    if let Some(Value::Object(mut summary)) = summary.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        // The list does not show single ranks.
        summary.remove("ranks");
        flatten("summary", Value::Object(summary), &mut keys);
    }
    flatten("metrics", Value::Object(last_values(&folder.join("metrics.jsonl"))), &mut keys);
    keys
}

fn flatten(path: &str, value: Value, keys: &mut Map<String, Value>) {
    match value {
        Value::Object(map) => {
            map.into_iter().for_each(|(name, value)| flatten(&format!("{path}.{name}"), value, keys));
        }
        Value::Null => {}
        Value::Array(_) => drop(keys.insert(path.to_owned(), Value::String(value.to_string()))),
        other => drop(keys.insert(path.to_owned(), other)),
    }
}

/// Reads the last complete line of the metrics, with the test metrics of the last evaluation before it.
fn last_values(path: &Path) -> Map<String, Value> {
    let mut lines = last_lines(path).into_iter();
    let mut values = lines.next().unwrap_or_default();
    let is_evaluated = |line: &Map<String, Value>| line.keys().any(|name| name.starts_with("test_"));
    if !is_evaluated(&values)
        && let Some(line) = lines.find(is_evaluated)
    {
        values.extend(line.into_iter().filter(|(name, _)| name.starts_with("test_")));
    }
    values
}

/// Reads the complete lines at the end of a JSON lines file, the last one first.
fn last_lines(path: &Path) -> Vec<Map<String, Value>> {
    let mut bytes = Vec::new();
    let read = Links::Refuse.open(path).and_then(|mut file| {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        file.take(LAST_BYTES).read_to_end(&mut bytes)
    });
    // A run without metrics has no values.
    drop(read);
    bytes.rsplit(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_at_any_depth_and_read_again_when_they_change() {
        let place = tempfile::tempdir().expect("a folder");
        for run in ["b", "a/sweep/runs/x", "b/first", "b/checkpoints/c"] {
            std::fs::create_dir_all(place.path().join(run)).expect("a folder");
            std::fs::write(place.path().join(run).join("config.toml"), "[train]\nranks = 2\n")
                .expect("writes");
        }
        let metrics = place.path().join("b/metrics.jsonl");
        std::fs::write(
            &metrics,
            "{\"step\":1,\"loss\":3.0,\"test_accuracy\":0.5}\n{\"step\":2,\"loss\":2.0,\"lr\":null}\n{\"st",
        )
        .expect("writes");
        let served = ServedFolder::new(place.path()).expect("a folder");
        let mut list = List::default();
        let refresh = |list: &mut List| list.refresh(&served);
        let found = refresh(&mut list);
        let paths: Vec<&str> = found.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["a/sweep/runs/x", "b", "b/first"]);
        assert_eq!(found[1].keys["metrics.loss"], 2.0);
        assert_eq!(found[1].keys["metrics.test_accuracy"], 0.5, "of the last evaluation");
        assert_eq!((&found[1].keys["config.train.ranks"], found[1].state), (&Value::from(2), "under way"));
        std::fs::write(
            place.path().join("b/summary.json"),
            "{\"status\":\"finished\",\"step\":2,\"ranks\":[{}]}",
        )
        .expect("writes");
        let found = refresh(&mut list);
        assert_eq!((found[1].state, found[1].keys.get("summary.ranks")), ("finished", None));
        std::fs::remove_dir_all(place.path().join("a")).expect("removes");
        assert_eq!(refresh(&mut list).len(), 2);
    }
}
