//! MLflow's file store: a folder for each experiment, and in it one for each run.
//!
//! The layout is that of `mlflow.store.tracking.file_store.FileStore`: `meta.yaml`, `metrics/NAME` with lines
//! `milliseconds value step`, `params/NAME`, `tags/NAME` and `artifacts/`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::yaml;
use crate::dashboard::Status;
use crate::settings::{Settings, get, read_settings};
use phalanx_run::{Line, Links, RunError, RunFolder, RunStart, RunStarts, open_to_append, write_aside};

/// The most characters of a parameter that MLflow stores.
const LONGEST: usize = 6000;

/// The files of a run's folder that become artifacts. Checkpoints do not.
const ARTIFACTS: [&str; 5] = ["config.toml", "run.json", "summary.json", "curves.svg", "synchrony.svg"];

/// An experiment of a store.
#[derive(Debug)]
pub(super) struct MlflowStore {
    id: String,
    folder: PathBuf,
}

/// The copy of a run.
#[derive(Debug)]
pub(super) struct MlflowRun {
    source: RunFolder,
    folder: PathBuf,
    name: String,
    id: String,
    experiment: String,
    user: String,
    /// Milliseconds since 1970.
    start: i64,
    /// The last written status.
    status: Option<Status>,
    /// Seconds of training at the last line.
    seconds: f64,
}

/// Describes a status, as MLflow does.
pub(super) fn word(status: &Status) -> &'static str {
    match number(status) {
        3 => "finished",
        4 => "failed",
        5 => "interrupted",
        _ => "running",
    }
}

/// Returns a status as a number of MLflow's `RunStatus`.
fn number(status: &Status) -> u8 {
    match status {
        Status::Starting | Status::Training | Status::Paused => 1,
        Status::Ended(end) if end == "finished" => 3,
        Status::Ended(_) => 5,
        Status::Failed(_) | Status::Gone => 4,
    }
}

impl MlflowStore {
    /// Opens an experiment, and creates it and the store if they are missing.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn open(store: &Path, experiment: &str) -> Result<Self, RunError> {
        fs::create_dir_all(store).map_err(RunError::io("create", store))?;
        let store = fs::canonicalize(store).map_err(RunError::io("open", store))?;
        let entries = fs::read_dir(&store).map_err(RunError::io("read", &store))?.flatten();
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        folders.sort();
        for folder in folders {
            let meta = fs::read_to_string(folder.join("meta.yaml")).unwrap_or_default();
            if yaml::text(&meta, "name").as_deref() == Some(experiment) {
                let id = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
                return Ok(Self { id, folder });
            }
        }
        // Ids of MLflow are numbers of 18 digits.
        let hash = Sha256::digest(experiment.as_bytes());
        let number = hash[..8].iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
        let id = (100_000_000_000_000_000 + number % 900_000_000_000_000_000).to_string();
        let folder = store.join(&id);
        fs::create_dir_all(&folder).map_err(RunError::io("create", &folder))?;
        let now = milliseconds(jiff::Timestamp::now());
        let meta = yaml::file(&[
            ("artifact_location", uri(&folder).into()),
            ("creation_time", now.into()),
            ("experiment_id", id.clone().into()),
            ("last_update_time", now.into()),
            ("lifecycle_stage", "active".into()),
            ("name", experiment.into()),
        ]);
        write(&folder.join("meta.yaml"), &meta)?;
        Ok(Self { id, folder })
    }
}

impl MlflowRun {
    /// Begins the copy of a run, without metrics. An earlier copy is replaced.
    ///
    /// # Errors
    /// If a file cannot be read or written.
    pub(super) fn begin(store: &MlflowStore, source: &RunFolder) -> Result<Self, RunError> {
        let path = fs::canonicalize(source.path()).map_err(RunError::io("open", source.path()))?;
        let starts = RunStarts::read(&source.starts()).unwrap_or_default().starts;
        let began = starts.first().and_then(|start| start.time.parse::<jiff::Timestamp>().ok());
        let written = || fs::metadata(source.config()).ok()?.modified().ok()?.try_into().ok();
        let start = milliseconds(began.or_else(written).unwrap_or(jiff::Timestamp::UNIX_EPOCH));
        // The same run has the same id in every call, and a new run in its folder has another one.
        let hash = Sha256::digest(format!("{}\n{start}", path.display()).as_bytes());
        let id: String = hash[..16].iter().map(|byte| format!("{byte:02x}")).collect();
        let user = ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok()).unwrap_or_default();
        let run = Self {
            source: source.clone(),
            folder: store.folder.join(&id),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            id,
            experiment: store.id.clone(),
            user,
            start,
            status: None,
            seconds: 0.0,
        };
        for part in ["metrics", "params", "tags", "artifacts"] {
            let part = run.folder.join(part);
            if part.exists() {
                fs::remove_dir_all(&part).map_err(RunError::io("remove", &part))?;
            }
            fs::create_dir_all(&part).map_err(RunError::io("create", &part))?;
        }
        let malformed = |problem| RunError::Malformed { path: source.config(), problem };
        let settings = read_settings(&source.config()).map_err(malformed)?;
        run.describe(&settings, &starts, &path)?;
        Ok(run)
    }

    /// Writes the settings and the tags.
    fn describe(&self, settings: &Settings, starts: &[RunStart], path: &Path) -> Result<(), RunError> {
        for (key, value) in settings.iter().filter(|(key, _)| key.contains('.')) {
            let value: String = value.chars().take(LONGEST).collect();
            plain(&self.folder.join("params").join(safe(key)), &value)?;
        }
        let start = starts.last();
        let git = start.and_then(|start| start.git.as_ref());
        let tags = [
            ("mlflow.runName", Some(self.name.clone())),
            ("mlflow.user", Some(self.user.clone())),
            ("mlflow.source.type", Some("LOCAL".to_owned())),
            ("mlflow.source.name", start.map(RunStart::command_line)),
            ("mlflow.source.git.commit", git.map(|git| git.commit.clone())),
            ("mlflow.source.git.branch", git.and_then(|git| git.branch.clone())),
            ("mlflow.note.content", get(settings, "description").map(str::to_owned)),
            ("phalanx.folder", Some(path.display().to_string())),
            ("phalanx.git_dirty", git.and_then(|git| git.dirty).map(|dirty| dirty.to_string())),
        ];
        for (name, value) in tags.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            plain(&self.folder.join("tags").join(name), &value)?;
        }
        Ok(())
    }

    /// Removes all metrics: the run was resumed, and its lines come again.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub(super) fn forget(&mut self) -> Result<(), RunError> {
        let metrics = self.folder.join("metrics");
        fs::remove_dir_all(&metrics).map_err(RunError::io("remove", &metrics))?;
        fs::create_dir_all(&metrics).map_err(RunError::io("create", &metrics))?;
        self.seconds = 0.0;
        Ok(())
    }

    /// Appends lines of metrics. The time of a line is the start of the run and its seconds of training.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn add(&mut self, lines: &[Line]) -> Result<(), RunError> {
        let mut by_name: BTreeMap<&str, String> = BTreeMap::new();
        for line in lines {
            self.seconds = line.number("seconds").unwrap_or(self.seconds);
            let (time, step) = (self.start + (1e3 * self.seconds) as i64, line.step());
            for (name, value) in line.numbers() {
                let _ = writeln!(by_name.entry(name).or_default(), "{time} {value} {step}");
            }
            for name in line.not_finite() {
                let _ = writeln!(by_name.entry(name).or_default(), "{time} nan {step}");
            }
        }
        for (name, text) in by_name {
            let path = self.folder.join("metrics").join(safe(name));
            let appended = open_to_append(&path).and_then(|mut file| file.write_all(text.as_bytes()));
            appended.map_err(RunError::io("write", &path))?;
        }
        Ok(())
    }

    /// Writes the status, and of a run that is over its artifacts.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn set_status(&mut self, status: &Status) -> Result<(), RunError> {
        if self.status.as_ref() == Some(status) {
            return Ok(());
        }
        self.status = Some(status.clone());
        let end = status.is_over().then(|| self.start + (1e3 * self.seconds) as i64);
        let meta = yaml::file(&[
            ("artifact_uri", uri(&self.folder.join("artifacts")).into()),
            ("end_time", json!(end)),
            ("entry_point_name", "".into()),
            ("experiment_id", self.experiment.clone().into()),
            ("lifecycle_stage", "active".into()),
            ("run_id", self.id.clone().into()),
            ("run_name", self.name.clone().into()),
            ("source_name", "".into()),
            ("source_type", 4.into()),
            ("source_version", "".into()),
            ("start_time", self.start.into()),
            ("status", number(status).into()),
            ("tags", Value::Array(Vec::new())),
            ("user_id", self.user.clone().into()),
        ]);
        write(&self.folder.join("meta.yaml"), &meta)?;
        if status.is_over() { self.copy_artifacts() } else { Ok(()) }
    }

    /// Copies the configuration, the summary, charts and samples.
    fn copy_artifacts(&self) -> Result<(), RunError> {
        let artifacts = self.folder.join("artifacts");
        let mut files: Vec<PathBuf> = ARTIFACTS.iter().map(PathBuf::from).collect();
        let samples = fs::read_dir(self.source.samples()).into_iter().flatten().flatten();
        files.extend(samples.map(|entry| Path::new("samples").join(entry.file_name())));
        let exists = |file: &PathBuf| self.source.path().join(file).is_file();
        for file in files.into_iter().filter(exists) {
            let (from, to) = (self.source.path().join(&file), artifacts.join(&file));
            let bytes = Links::Refuse.read(&from).map_err(RunError::io("read", &from))?;
            to.parent().map_or(Ok(()), fs::create_dir_all).map_err(RunError::io("create", &to))?;
            fs::write(&to, bytes).map_err(RunError::io("write", &to))?;
        }
        Ok(())
    }
}

fn write(path: &Path, text: &str) -> Result<(), RunError> {
    write_aside(path, text.as_bytes()).map_err(RunError::io("write", path))
}

/// Writes a file that each call writes anew, without waiting for the disk.
fn plain(path: &Path, text: &str) -> Result<(), RunError> {
    fs::write(path, text).map_err(RunError::io("write", path))
}

fn milliseconds(time: jiff::Timestamp) -> i64 {
    time.as_millisecond()
}

/// Returns a name of the characters that MLflow accepts, which is no path.
fn safe(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "_-. ".contains(c) { c } else { '_' };
    let name: String = name.chars().map(kept).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

/// Returns the `file:` URI of an absolute path.
fn uri(path: &Path) -> String {
    let mut uri = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                uri.push(char::from(*byte));
            }
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
    uri
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_run::Summary;

    fn run(place: &Path) -> RunFolder {
        let folder = RunFolder::create(Some(&place.join("my run")), place, "x").expect("new");
        let config = "description = \"a test\"\n[optim]\nlr = 0.5\nkind = \"sgd\"\n";
        fs::write(folder.config(), config).expect("writes");
        let lines = "{\"step\":1,\"loss\":0.5,\"seconds\":2.0}\n{\"step\":2,\"loss\":null,\"test_l1\":3,\"seconds\":2.5}\n";
        fs::write(folder.metrics(), lines).expect("writes");
        Summary { status: "finished".into(), step: 2, ..Summary::default() }
            .write(&folder.summary())
            .expect("writes");
        folder
    }

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    #[test]
    fn a_run_is_written_in_the_layout_of_the_file_store() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = run(place.path());
        let store = MlflowStore::open(&place.path().join("ml runs"), "my: tests").expect("opens");
        assert_eq!((store.id.len(), store.folder.file_name()), (18, Some(store.id.as_ref())));
        let mut copy = MlflowRun::begin(&store, &folder).expect("begins");
        let lines = phalanx_run::read_metrics(&folder.metrics()).expect("reads");
        copy.add(&lines).expect("writes");
        copy.set_status(&Status::Ended("finished".into())).expect("writes");
        let own = copy.folder.clone();
        let (first, second) = (copy.start + 2000, copy.start + 2500);
        assert_eq!(read(&own.join("metrics/loss")), format!("{first} 0.5 1\n{second} nan 2\n"));
        assert_eq!(read(&own.join("metrics/test_l1")), format!("{second} 3 2\n"));
        assert_eq!(
            (read(&own.join("params/optim.lr")), read(&own.join("params/optim.kind"))),
            ("0.5".into(), "sgd".into())
        );
        assert_eq!(
            (read(&own.join("tags/mlflow.runName")), read(&own.join("tags/mlflow.note.content"))),
            ("my run".into(), "a test".into())
        );
        let meta = read(&own.join("meta.yaml"));
        let location = yaml::text(&meta, "artifact_uri").expect("a location");
        assert!(location.starts_with("file:///") && location.contains("ml%20runs"), "{location}");
        assert_eq!(yaml::text(&meta, "status").as_deref(), Some("3"));
        assert_eq!(yaml::text(&meta, "end_time"), Some(second.to_string()));
        assert!(own.join("artifacts/summary.json").is_file() && own.join("artifacts/config.toml").is_file());
        // A second call replaces the copy, in the experiment of this name.
        let again = MlflowStore::open(&place.path().join("ml runs"), "my: tests").expect("opens");
        let mut copy = MlflowRun::begin(&again, &folder).expect("begins");
        assert_eq!((copy.folder.clone(), own.join("metrics/loss").exists()), (own.clone(), false));
        copy.add(&lines).expect("writes");
        copy.forget().expect("removes");
        copy.add(&lines[..1]).expect("writes");
        copy.set_status(&Status::Training).expect("writes");
        assert_eq!(read(&own.join("metrics/loss")), format!("{first} 0.5 1\n"));
        assert_eq!(yaml::text(&read(&own.join("meta.yaml")), "end_time").as_deref(), Some("null"));
    }

    #[test]
    fn names_are_no_paths() {
        assert_eq!(["test_l1", "../a", "a/b", ".hidden"].map(safe), ["test_l1", "_.._a", "a_b", "_.hidden"]);
    }
}
