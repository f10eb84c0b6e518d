//! `metrics.jsonl`: one JSON object for each logged step, one per line.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::RunError;
use super::atomic::write_aside;

/// One line of metrics: `step`, then the measurements in order of insertion.
#[derive(Debug, Clone, PartialEq)]
pub struct Line(Map<String, Value>);

impl Line {
    /// Creates a line for `step`.
    pub fn new(step: u64) -> Self {
        Self(Map::from_iter([("step".to_owned(), Value::from(step))]))
    }

    /// Adds a measurement. JSON has no infinities, so a non-finite value becomes `null`.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Parses a line; `None` if it is no JSON object.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok().map(Self)
    }

    /// Returns the names and values of all numbers except the step, in their order.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        let numbers = self.0.iter().filter(|(name, _)| *name != "step");
        numbers.filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
    }

    /// Returns the step.
    pub fn step(&self) -> u64 {
        self.0.get("step").and_then(Value::as_u64).unwrap_or_default()
    }

    /// Returns a number by name.
    pub fn number(&self, name: &str) -> Option<f64> {
        self.0.get(name)?.as_f64()
    }
}

/// An appending writer. Each line is in the file when [`MetricsWriter::write`] returns.
#[derive(Debug)]
pub struct MetricsWriter {
    path: PathBuf,
    file: File,
    last: Option<Line>,
}

impl MetricsWriter {
    /// Opens the file for a run that has completed `step` steps. Removes lines of later steps, because a run that is
    /// resumed from a checkpoint repeats them.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(path: &Path, step: u64) -> Result<Self, RunError> {
        let mut last = None;
        if path.exists() {
            let mut kept = Vec::new();
            // A truncated last line of a killed run belongs to no checkpointed step.
            for line in read_metrics(path)?.into_iter().filter(|line| line.step() <= step) {
                serde_json::to_writer(&mut kept, &line.0).map_err(|error| malformed(path, &error))?;
                kept.push(b'\n');
                last = Some(line);
            }
            write_aside(path, &kept).map_err(RunError::io("write", path))?;
        }
        let file =
            OpenOptions::new().create(true).append(true).open(path).map_err(RunError::io("open", path))?;
        Ok(Self { path: path.to_owned(), file, last })
    }

    /// Returns the last line of the file.
    pub fn last(&self) -> Option<&Line> {
        self.last.as_ref()
    }

    /// Appends a line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, line: &Line) -> Result<(), RunError> {
        let mut bytes = serde_json::to_vec(&line.0).map_err(|error| malformed(&self.path, &error))?;
        bytes.push(b'\n');
        self.file.write_all(&bytes).map_err(RunError::io("write", &self.path))?;
        self.last = Some(line.clone());
        Ok(())
    }
}

fn malformed(path: &Path, error: &serde_json::Error) -> RunError {
    RunError::Malformed { path: path.to_owned(), problem: error.to_string() }
}

/// Reads all lines of a file. Ignores a truncated last line.
///
/// # Errors
/// If the file cannot be read, or a line before the last is no JSON object.
pub fn read_metrics(path: &Path) -> Result<Vec<Line>, RunError> {
    let file = File::open(path).map_err(RunError::io("open", path))?;
    let mut lines = Vec::new();
    let mut broken = None;
    for (number, text) in BufReader::new(file).lines().enumerate() {
        let text = text.map_err(RunError::io("read", path))?;
        if let Some(problem) = broken.take() {
            return Err(RunError::Malformed { path: path.to_owned(), problem });
        }
        match serde_json::from_str(&text) {
            Ok(map) => lines.push(Line(map)),
            Err(error) => broken = Some(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines are read and written again when a run goes on, and losses are compared to the bit.
    #[test]
    fn lines_that_are_written_again_keep_their_bits() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, 0).expect("opens");
        let mut number = 1.961_977_362_632_751_5_f64;
        for step in 1..=400 {
            writer.write(&Line::new(step).with("loss", number)).expect("writes");
            number = (number * 1.37).sin().abs() + 1e-3;
        }
        drop(writer);
        let before = std::fs::read_to_string(&path).expect("reads");
        drop(MetricsWriter::open(&path, 399).expect("opens"));
        let after = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(after.lines().count(), 399);
        assert!(before.starts_with(&after), "some numbers have changed");
    }

    #[test]
    fn resuming_takes_later_lines_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, 0).expect("opens");
        for step in [1, 10, 20, 30] {
            writer.write(&Line::new(step).with("loss", 1.0 / step as f64)).expect("writes");
        }
        OpenOptions::new()
            .append(true)
            .open(&path)
            .expect("opens")
            .write_all(b"{\"step\":4")
            .expect("writes");
        let mut writer = MetricsWriter::open(&path, 20).expect("opens");
        assert_eq!(writer.last().map(Line::step), Some(20));
        writer.write(&Line::new(30).with("loss", 0.5).with("lr", f64::NAN)).expect("writes");
        assert_eq!(writer.last().map(Line::step), Some(30));
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(text.lines().last(), Some(r#"{"step":30,"loss":0.5,"lr":null}"#));
        let steps: Vec<u64> = read_metrics(&path).expect("reads").iter().map(Line::step).collect();
        assert_eq!(steps, [1, 10, 20, 30]);
    }
}
