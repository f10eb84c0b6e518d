//! `metrics.jsonl`: one JSON object for each logged step, one per line.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};

use phalanx_data::Links;
use serde_json::{Map, Value};

use super::RunError;
use super::atomic::{open_to_append, write_aside};

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

    /// Returns the names of values that were not finite.
    pub fn not_finite(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|(_, value)| value.is_null()).map(|(name, _)| name.as_str())
    }

    /// Returns the names and values.
    pub fn values(&self) -> &Map<String, Value> {
        &self.0
    }

    /// Returns the step.
    pub fn step(&self) -> u64 {
        self.0.get("step").and_then(Value::as_u64).unwrap_or_default()
    }

    /// Returns true if the line has a measurement, also one that was not finite.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
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
    damaged: Vec<String>,
}

impl MetricsWriter {
    /// Opens the file for a run that has completed `step` steps. Removes lines of later steps, because a run that is
    /// resumed from a checkpoint repeats them.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn open(path: &Path, step: u64) -> Result<Self, RunError> {
        let (mut last, mut damaged) = (None, Vec::new());
        if path.exists() {
            // A truncated last line of a killed run belongs to no checkpointed step.
            let mut read = read_lines(path)?;
            read.lines.retain(|line| line.step() <= step);
            rewrite(path, &read.lines)?;
            (last, damaged) = (read.lines.pop(), read.damaged);
        }
        Ok(Self { path: path.to_owned(), file: append(path)?, last, damaged })
    }

    /// Takes the descriptions of damaged lines, which [`MetricsWriter::open`] has left out.
    pub fn take_damaged(&mut self) -> Vec<String> {
        std::mem::take(&mut self.damaged)
    }

    /// Replaces the last line if it is of the same step, and appends the line otherwise.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn amend(&mut self, line: &Line) -> Result<(), RunError> {
        if self.last.as_ref().is_none_or(|last| last.step() != line.step()) {
            return self.write(line);
        }
        let mut lines = read_lines(&self.path)?.lines;
        lines.pop();
        lines.push(line.clone());
        rewrite(&self.path, &lines)?;
        self.file = append(&self.path)?;
        self.last = Some(line.clone());
        Ok(())
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

fn append(path: &Path) -> Result<File, RunError> {
    open_to_append(path).map_err(RunError::io("open", path))
}

/// Replaces the lines of a file.
fn rewrite(path: &Path, lines: &[Line]) -> Result<(), RunError> {
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, &line.0).map_err(|error| malformed(path, &error))?;
        bytes.push(b'\n');
    }
    write_aside(path, &bytes).map_err(RunError::io("write", path))
}

fn malformed(path: &Path, error: &serde_json::Error) -> RunError {
    RunError::Malformed { path: path.to_owned(), problem: error.to_string() }
}

/// Reads all lines of a file. Ignores a truncated last line.
///
/// # Errors
/// If the file cannot be read, or a line before the last is no JSON object.
pub fn read_metrics(path: &Path) -> Result<Vec<Line>, RunError> {
    let MetricsLines { lines, damaged } = read_lines(path)?;
    match damaged.into_iter().next() {
        Some(problem) => Err(RunError::Malformed { path: path.to_owned(), problem }),
        None => Ok(lines),
    }
}

/// Reads the lines of a file that are whole. [`MetricsWriter::open`] reports the others.
///
/// # Errors
/// If the file cannot be read.
pub fn read_whole_metrics(path: &Path) -> Result<Vec<Line>, RunError> {
    Ok(read_lines(path)?.lines)
}

/// The content of a file of metrics.
struct MetricsLines {
    lines: Vec<Line>,
    /// The problems of lines that are no JSON objects, except for a truncated last line.
    damaged: Vec<String>,
}

fn read_lines(path: &Path) -> Result<MetricsLines, RunError> {
    let file = Links::Refuse.open(path).map_err(RunError::io("open", path))?;
    let mut read = MetricsLines { lines: Vec::new(), damaged: Vec::new() };
    let mut last_problem = None;
    for (number, bytes) in BufReader::new(file).split(b'\n').enumerate() {
        let bytes = bytes.map_err(RunError::io("read", path))?;
        read.damaged.extend(last_problem.take());
        match serde_json::from_slice(&bytes) {
            Ok(map) => read.lines.push(Line(map)),
            Err(error) => last_problem = Some(format!("line {}: {error}", number + 1)),
        }
    }
    Ok(read)
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
    fn damaged_lines_are_left_out_and_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, b"{\"step\":1}\n{\"st\xff\n\n{\"step\":2,\"loss\":0.5}\n{\"step\":3")
            .expect("writes");
        let error = read_metrics(&path).expect_err("damaged").to_string();
        assert!(error.contains("metrics.jsonl: line 2: "), "{error}");
        let mut writer = MetricsWriter::open(&path, 9).expect("opens");
        let damaged = writer.take_damaged();
        assert!(
            damaged.len() == 2 && damaged[0].starts_with("line 2: ") && damaged[1].starts_with("line 3: ")
        );
        writer.amend(&Line::new(2).with("loss", 0.5).with("test_loss", 0.75)).expect("replaces");
        writer.amend(&Line::new(3)).expect("appends");
        writer.write(&Line::new(4)).expect("appends");
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(
            text,
            "{\"step\":1}\n{\"step\":2,\"loss\":0.5,\"test_loss\":0.75}\n{\"step\":3}\n{\"step\":4}\n"
        );
    }

    #[test]
    fn resuming_takes_later_lines_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut writer = MetricsWriter::open(&path, 0).expect("opens");
        for step in [1, 10, 20, 30] {
            writer.write(&Line::new(step).with("loss", 1.0 / step as f64)).expect("writes");
        }
        std::fs::OpenOptions::new()
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
