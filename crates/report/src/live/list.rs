//! The list of runs in a folder, with all keys for sorting and filtering.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_run::Links;
use serde::Serialize;
use serde_json::{Map, Value};

use super::served_folder::ServedFolder;
use super::sweeps::{SweepEntry, sweep_of};
use crate::{Progress, State, is_run, read_notes, run_state};

/// The maximum depth of the search for runs.
const DEPTH: usize = 8;
/// The maximum number of listed runs.
const MAX_RUNS: usize = 10_000;
/// The number of bytes at the end of the metrics that are read for the newest values.
const LAST_BYTES: u64 = 1 << 16;
/// The maximum number of letters of notes in the list.
const NOTES: usize = 300;

/// The runs and the sweeps in a folder.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Listing {
    /// The runs, by path.
    pub(super) runs: Vec<Entry>,
    /// The sweeps of the runs, by path.
    pub(super) sweeps: Vec<SweepEntry>,
}

/// A run in the list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Entry {
    /// Its path relative to the served folder.
    pub(super) path: String,
    /// The status.
    state: &'static str,
    /// The progress; `null` once the run is over.
    progress: Option<Progress>,
    /// The path of the sweep that it belongs to.
    pub(super) sweep: Option<String>,
    /// The beginning of the user's notes.
    notes: String,
    /// The time of the last write, in seconds since 1970.
    written: f64,
    /// Its values by key: `config.train.ranks`, `summary.world_size`, `metrics.loss`.
    keys: Map<String, Value>,
}

/// The modification times and lengths of files. Unchanged files are not read again.
type FileStamps = Vec<Option<(SystemTime, u64)>>;

/// The content of a run's files.
#[derive(Debug, Clone, Default)]
struct Content {
    keys: Map<String, Value>,
    /// The steps and the seconds of training of the last lines.
    recent: Vec<(f64, f64)>,
    notes: String,
}

/// The cached list of runs.
#[derive(Debug, Default)]
pub(super) struct List {
    known: BTreeMap<PathBuf, (FileStamps, Content)>,
}

/// The files from which an entry is made.
const FILES: [&str; 4] = ["config.toml", "summary.json", "metrics.jsonl", "notes.md"];

impl List {
    /// Returns all runs and sweeps, sorted by path.
    pub(super) fn refresh(&mut self, served: &ServedFolder) -> Listing {
        let mut folders = Vec::new();
        find(served.root(), DEPTH, &mut folders);
        folders.sort();
        self.known.retain(|path, _| folders.binary_search(path).is_ok());
        let folders = folders.into_iter().filter(|folder| served.holds_run(folder));
        let runs: Vec<Entry> = folders.filter_map(|folder| self.entry(served, &folder)).collect();
        let mut paths: Vec<&str> = runs.iter().filter_map(|run| run.sweep.as_deref()).collect();
        paths.sort_unstable();
        paths.dedup();
        let sweeps = paths.into_iter().map(|path| SweepEntry::read(served, path)).collect();
        Listing { runs, sweeps }
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
        let Content { keys, recent, notes } = match self.known.get(folder) {
            Some((known, content)) if *known == stamp => content.clone(),
            _ => {
                let content = read(folder);
                self.known.insert(folder.to_owned(), (stamp, content.clone()));
                content
            }
        };
        let last = keys.get("metrics.step").and_then(Value::as_u64).unwrap_or_default();
        let summary =
            Map::from_iter(["step", "status"].iter().filter_map(|name| {
                Some(((*name).to_owned(), keys.get(&format!("summary.{name}"))?.clone()))
            }));
        let state = run_state(folder, &Value::Object(summary), last);
        Some(Entry {
            path: served.relative(folder)?,
            state: state.words(),
            progress: (state == State::UnderWay).then(|| Progress::of(folder, last, &recent)),
            sweep: sweep_of(folder).and_then(|sweep| served.relative(&sweep)),
            notes,
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
    // A run that was refused leaves its configuration in its logs.
    let is_refused = !is_one && folder.join("lock").is_file();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        // A run contains at most one other run: the run of its first stage.
        let wanted = if is_one { name == "first" } else { !(is_refused && name == "logs") };
        if wanted && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            find(&entry.path(), depth - 1, found);
        }
    }
}

/// Reads the files of a run.
fn read(folder: &Path) -> Content {
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
    let mut recent = Vec::new();
    for line in last_lines(&folder.join("metrics.jsonl")) {
        let number = |name: &str| line.get(name).and_then(Value::as_f64);
        // Lines of an evaluation alone have no learning rate, gradients or loss.
        let is_trained = line.keys().any(|name| name.ends_with("loss") && !name.starts_with("test_"));
        recent.extend(number("step").zip(number("seconds")).filter(|_| is_trained));
        // Values that not every line has remain.
        flatten("metrics", Value::Object(line), &mut keys);
    }
    let notes = read_notes(folder).unwrap_or_default().chars().take(NOTES).collect();
    Content { keys, recent, notes }
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

/// Reads the last complete lines of a JSON lines file.
fn last_lines(path: &Path) -> Vec<Map<String, Value>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = Links::Refuse.open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LAST_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(LAST_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().unwrap_or_default();
    bytes.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_at_any_depth_and_read_again_when_they_change() {
        let place = tempfile::tempdir().expect("a folder");
        for run in ["b", "a/sweep/runs/x", "a/sweep/runs/y", "b/first", "b/checkpoints/c", "refused/logs"] {
            std::fs::create_dir_all(place.path().join(run)).expect("a folder");
            std::fs::write(place.path().join(run).join("config.toml"), "[train]\nranks = 2\n")
                .expect("writes");
        }
        std::fs::write(place.path().join("refused/lock"), "").expect("writes");
        let metrics = place.path().join("b/metrics.jsonl");
        let lines = "{\"step\":1,\"loss\":3.0,\"seconds\":1.0,\"test_loss\":4.0,\"test_accuracy\":0.5}\n\
                     {\"step\":2,\"loss\":2.0,\"seconds\":3.0,\"lr\":null}\n{\"st";
        std::fs::write(&metrics, lines).expect("writes");
        std::fs::write(place.path().join("b/notes.md"), "a <note>\n").expect("writes");
        std::fs::create_dir(place.path().join("a/sweep/configs")).expect("a folder");
        std::fs::write(place.path().join("a/sweep/configs/x.toml"), "").expect("writes");
        let state = phalanx_run::RunState { step: 2, total: 10, ..phalanx_run::RunState::default() };
        state.write(&place.path().join("b/state.json")).expect("writes");
        let served = ServedFolder::new(place.path()).expect("a folder");
        let mut list = List::default();
        let refresh = |list: &mut List| list.refresh(&served);
        let found = refresh(&mut list);
        let paths: Vec<&str> = found.runs.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!(paths, ["a/sweep/runs/x", "a/sweep/runs/y", "b", "b/first"]);
        let b = &found.runs[2];
        assert_eq!((&b.keys["metrics.loss"], &b.keys["metrics.test_loss"]), (&2.0.into(), &4.0.into()));
        assert_eq!(b.keys["metrics.test_accuracy"], 0.5, "of the last evaluation");
        assert_eq!((&b.keys["config.train.ranks"], b.state), (&Value::from(2), "under way"));
        assert_eq!(
            (b.notes.as_str(), b.progress.and_then(|progress| progress.left)),
            ("a <note>", Some(16.0))
        );
        // Runs of a sweep are those whose configurations it has written.
        let sweeps: Vec<_> = found.runs.iter().map(|entry| entry.sweep.as_deref()).collect();
        assert_eq!(sweeps, [Some("a/sweep"), None, None, None]);
        assert_eq!((found.sweeps.len(), found.sweeps[0].path.as_str()), (1, "a/sweep"));
        std::fs::write(
            place.path().join("b/summary.json"),
            "{\"status\":\"finished\",\"step\":2,\"ranks\":[{}]}",
        )
        .expect("writes");
        let found = refresh(&mut list);
        let b = &found.runs[2];
        assert_eq!((b.state, b.progress, b.keys.get("summary.ranks")), ("finished", None, None));
        std::fs::remove_dir_all(place.path().join("a")).expect("removes");
        assert_eq!(refresh(&mut list).runs.len(), 2);
    }
}
