//! Reads the data in a run's folder. All files are optional except `config.toml`.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use phalanx_run::{ClassReport, Links, RunState};
use serde_json::Value;

use super::columns::Columns;
use super::evaluation::Evaluation;
use super::progress::Progress;
use super::samples::Samples;
use super::settings::{Settings, at, get, read_settings};
use super::tails::{Position, Tails, rank_of};
use super::warnings::Warnings;

/// The time without writes after which a run counts as ended.
const SILENCE: Duration = Duration::from_secs(300);

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// It finished.
    Finished,
    /// It was stopped. It can be resumed from a checkpoint.
    Interrupted,
    /// It has written recently and has no summary yet.
    UnderWay,
    /// It has no summary and no recent writes: it was killed, failed, or hangs.
    Silent,
}

impl State {
    /// Returns the displayed text.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Interrupted => "interrupted",
            Self::UnderWay => "under way",
            Self::Silent => "ended without a summary",
        }
    }
}

/// The data of a run.
#[derive(Debug)]
pub(crate) struct RunData {
    /// Its name among the runs of a report.
    pub(crate) name: String,
    /// Its folder.
    pub(crate) folder: PathBuf,
    /// The state.
    pub(crate) state: State,
    /// Its configuration.
    pub(crate) settings: Settings,
    /// Its summary, or `null`.
    pub(crate) summary: Value,
    /// Its time series.
    pub(crate) columns: Columns,
    /// The last step in any line.
    pub(crate) last_step: u64,
    /// The samples.
    pub(crate) samples: Samples,
    /// The pictures of its evaluations.
    pub(crate) evaluation: Evaluation,
    /// The progress; `None` once the run is over.
    pub(crate) progress: Option<Progress>,
    /// The user's notes; empty if there are none.
    pub(crate) notes: String,
    /// The last evaluation of a classifier.
    pub(crate) classes: Option<ClassReport>,
    /// The metric that leads, if it has one.
    pub(crate) headline: Option<String>,
    /// The warnings.
    pub(crate) warnings: Warnings,
    /// The position up to which its files were read.
    pub(crate) tails: Tails,
}

/// Adds the lines of metrics that cannot be read.
fn add_of_lines(warnings: &mut Warnings, tails: &Tails, state: State) {
    for tail in tails.files() {
        let name = tail.path().file_name().unwrap_or_default().to_string_lossy();
        if tail.broken() > 0 {
            let text = format!("{name}: {} lines are no JSON objects and were left out", tail.broken());
            warnings.add("file", &text, None);
        }
        if tail.is_cut_off() && state != State::UnderWay {
            warnings.add("file", &format!("{name} ends in the middle of a line"), None);
        }
    }
}

impl RunData {
    /// Reads a folder with a `config.toml`, and at most `pictures` samples. Damaged files become warnings.
    pub(crate) fn read(folder: &Path, name: &str, pictures: usize) -> Self {
        let mut warnings = Warnings::default();
        let settings = read_settings(&folder.join("config.toml")).unwrap_or_else(|problem| {
            warnings.add("file", &problem, None);
            Settings::new()
        });
        let summary = read_summary(&folder.join("summary.json")).unwrap_or_else(|problem| {
            warnings.add("file", &problem, None);
            Value::Null
        });
        let mut tails = Tails::new(folder, Position::default());
        let (mut columns, mut last_step) = (Columns::default(), 0);
        let read = tails.read(
            |point| {
                // Steps are integers.
                last_step = last_step.max(point.step as u64);
                columns.push(point);
            },
            |line| warnings.add_of_metrics(line),
        );
        if let Err(problem) = read {
            warnings.add("file", &problem, None);
        }
        let state = run_state(folder, &summary, last_step);
        add_of_lines(&mut warnings, &tails, state);
        let samples = Samples::read(&folder.join("samples"), pictures);
        let evaluation = Evaluation::of_run(folder, pictures);
        let damaged = samples.damaged.iter().chain(&samples.texts.damaged).chain(&evaluation.damaged);
        damaged.for_each(|problem| warnings.add("file", problem, None));
        let notes = read_notes(folder).unwrap_or_else(|problem| {
            warnings.add("file", &problem, None);
            String::new()
        });
        add_of_logs(&mut warnings, &folder.join("logs"));
        let progress = (state == State::UnderWay).then(|| Progress::of(folder, last_step, &recent(&columns)));
        let classes = read_classes(folder, &mut warnings);
        let headline = headline(folder, &summary);
        Self {
            name: name.to_owned(),
            folder: folder.to_owned(),
            state,
            settings,
            summary,
            columns,
            last_step,
            samples,
            evaluation,
            progress,
            notes,
            classes,
            headline,
            warnings,
            tails,
        }
    }

    /// Returns a setting.
    pub(crate) fn setting(&self, key: &str) -> Option<&str> {
        get(&self.settings, key)
    }

    /// Returns a value of the summary.
    pub(crate) fn summary_value(&self, path: &str) -> Option<&Value> {
        at(&self.summary, path)
    }

    /// Returns a number of the summary.
    pub(crate) fn number(&self, path: &str) -> Option<f64> {
        self.summary_value(path)?.as_f64()
    }

    /// Returns the ranks of the summary.
    pub(crate) fn ranks(&self) -> &[Value] {
        self.summary_value("ranks").and_then(Value::as_array).map_or(&[], Vec::as_slice)
    }
}

/// Adds warnings from logs and the failures of ranks.
fn add_of_logs(warnings: &mut Warnings, logs: &Path) {
    let entries = std::fs::read_dir(logs).into_iter().flatten().flatten();
    let mut names: Vec<(usize, bool, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let (log, error) = (rank_of(name.to_str()?, ".log"), rank_of(name.to_str()?, ".error.json"));
            Some((log.or(error)?, error.is_some(), entry.path()))
        })
        .collect();
    names.sort();
    for (rank, is_error, path) in names {
        if !is_error {
            warnings.add_of_log(&path, rank);
            continue;
        }
        let report: Option<Value> =
            Links::Refuse.read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(message) = report.as_ref().and_then(|report| report.get("message")?.as_str()) {
            warnings.add(&format!("rank {rank}"), message, None);
        }
    }
}

/// Returns the steps and the seconds of training of the lines with a learning rate or a loss: those of training steps.
fn recent(columns: &Columns) -> Vec<(f64, f64)> {
    let trained = columns.under("metrics/").filter(|name| !name.starts_with("test_"));
    let longest =
        trained.filter_map(|name| columns.get(&format!("metrics/{name}"))).max_by_key(|column| column.len());
    let pairs = longest
        .into_iter()
        .flat_map(|column| column.steps.iter().copied().zip(column.seconds.iter().copied()));
    pairs.filter(|(_, seconds)| seconds.is_finite()).collect()
}

/// The maximum number of bytes of notes that are shown.
const NOTES: u64 = 16 << 10;

/// Reads the user's notes, `notes.md`; empty if there are none.
///
/// # Errors
/// A message that begins with the name of the file.
pub(crate) fn read_notes(folder: &Path) -> Result<String, String> {
    let mut bytes = Vec::new();
    match Links::Refuse.open(&folder.join("notes.md")) {
        Ok(file) => file.take(NOTES).read_to_end(&mut bytes).map(drop),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| format!("notes.md cannot be read: {error}"))?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

/// Reads the last evaluation of a classifier.
fn read_classes(folder: &Path, warnings: &mut Warnings) -> Option<ClassReport> {
    let path = folder.join("evaluation/classes.json");
    if !path.exists() {
        return None;
    }
    ClassReport::read(&path).inspect_err(|problem| warnings.add("file", &problem.to_string(), None)).ok()
}

/// Returns the metric that leads: of the summary, or of the state of a run that is under way.
fn headline(folder: &Path, summary: &Value) -> Option<String> {
    let of_summary = at(summary, "headline").and_then(Value::as_str).map(str::to_owned);
    of_summary.or_else(|| RunState::read(&folder.join("state.json")).ok()?.headline)
}

fn read_summary(path: &Path) -> Result<Value, String> {
    match Links::Refuse.read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| format!("summary.json: {error}")),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Null),
        Err(error) => Err(format!("summary.json cannot be read: {error}")),
    }
}

/// Returns the state of a run whose lines end at `last_step`.
pub(crate) fn run_state(folder: &Path, summary: &Value, last_step: u64) -> State {
    let ended_at = at(summary, "step").and_then(Value::as_u64);
    // A resumed run keeps the old summary until it ends again.
    if ended_at.is_some_and(|step| step >= last_step) {
        return match at(summary, "status").and_then(Value::as_str) {
            Some("finished") => State::Finished,
            _ => State::Interrupted,
        };
    }
    let written = [
        "state.json",
        "metrics.jsonl",
        "metrics-by-rank.jsonl",
        "logs/rank-0.usage.jsonl",
        "logs/rank-0.log",
        "config.toml",
    ]
    .iter()
    .filter_map(|name| std::fs::metadata(folder.join(name)).ok()?.modified().ok())
    .max();
    let quiet = written.and_then(|written| SystemTime::now().duration_since(written).ok());
    // The write may be in the future if the clocks of hosts differ.
    match quiet.is_none_or(|quiet| quiet < SILENCE) {
        true => State::UnderWay,
        false => State::Silent,
    }
}
