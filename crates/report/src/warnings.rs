//! The warnings of a run: collapsed networks, dead ranks, warnings in logs, damaged files.

use std::collections::HashMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use phalanx_run::Links;

use super::object_tail::Object;

/// A warning. Repeated warnings are counted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Warning {
    /// The source: `step`, `rank 1`, a file's name.
    pub(crate) from: String,
    /// The text of its first occurrence.
    pub(crate) text: String,
    /// The number of occurrences.
    pub(crate) count: usize,
    /// The first and the last step, if any.
    pub(crate) steps: Option<(u64, u64)>,
}

/// The warnings of a run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings {
    all: Vec<Warning>,
    /// The index of each warning, by its source and text without numbers.
    places: HashMap<String, usize>,
}

/// The number of bytes at the end of a log that are searched.
const LOG_BYTES: u64 = 1 << 20;

impl Warnings {
    /// Returns all warnings, in the order of their first occurrence.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Warning> {
        self.all.iter()
    }

    /// Adds a warning. Warnings that differ only in numbers are counted together.
    pub(crate) fn add(&mut self, from: &str, text: &str, step: Option<u64>) {
        let kind = format!("{from}: {}", without_numbers(text));
        match self.places.get(&kind).map(|at| &mut self.all[*at]) {
            Some(warning) => {
                warning.count += 1;
                if let (Some((_, last)), Some(step)) = (&mut warning.steps, step) {
                    *last = step.max(*last);
                }
            }
            None => {
                let steps = step.map(|step| (step, step));
                let warning = Warning { from: from.to_owned(), text: text.to_owned(), count: 1, steps };
                self.places.insert(kind, self.all.len());
                self.all.push(warning);
            }
        }
    }

    /// Adds the warnings of a metrics line.
    pub(crate) fn add_of_metrics(&mut self, line: &Object) {
        let step = line.get("step").and_then(serde_json::Value::as_u64);
        let texts = line.get("warnings").and_then(serde_json::Value::as_array).into_iter().flatten();
        texts.filter_map(serde_json::Value::as_str).for_each(|text| self.add("training", text, step));
    }

    /// Adds the warnings and errors in the last MiB of a rank's log.
    pub(crate) fn add_of_log(&mut self, path: &Path, rank: usize) {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = Links::Refuse.open(path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let Ok(bytes) = read() else { return };
        for line in String::from_utf8_lossy(&bytes).lines() {
            // `2026-01-01T00:00:00.0Z  WARN target: text`
            let mut words = line.split_whitespace().skip(1);
            if matches!(words.next(), Some("WARN" | "ERROR")) {
                let text = line.split_once("WARN ").or_else(|| line.split_once("ERROR "));
                let text = text.map_or(line, |(_, text)| text);
                let text = text.split_once(": ").map_or(text, |(_, text)| text);
                self.add(&format!("rank {rank}"), text, None);
            }
        }
    }
}

fn without_numbers(text: &str) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        if !c.is_ascii_digit() {
            kept.push(c);
        } else if !kept.ends_with('#') {
            kept.push('#');
        }
    }
    // A decimal number is one number.
    kept.replace("#.#", "#")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_in_numbers_is_told_once() {
        let mut warnings = Warnings::default();
        for step in [10, 20, 30] {
            let text = format!("the critic has come to rest at 0.{step}");
            let line = serde_json::json!({"step": step, "warnings": [text]});
            warnings.add_of_metrics(line.as_object().expect("an object"));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("rank-1.log");
        std::fs::write(&log, "2026-01-01T00:00:00Z  WARN a::b: a rank is gone rank=1\n2026Z  INFO a: WARN\n")
            .expect("writes");
        warnings.add_of_log(&log, 1);
        warnings.add_of_log(&folder.path().join("none"), 2);
        let all: Vec<_> =
            warnings.iter().map(|w| (w.from.as_str(), w.text.as_str(), w.count, w.steps)).collect();
        let first = ("training", "the critic has come to rest at 0.10", 3, Some((10, 30)));
        assert_eq!(all, [first, ("rank 1", "a rank is gone rank=1", 1, None)]);
    }
}
