//! Incremental reading of all growing files of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::columns::{Point, of_metrics, of_rank};
use super::object_tail::{Object, ObjectTail};
use super::tail::TailRead;
use super::usage::Usage;

/// The maximum number of ranks whose files are read.
const MAX_RANKS: usize = 4096;

/// The growing files of a run.
#[derive(Debug)]
pub(crate) struct Tails {
    metrics: ObjectTail,
    by_rank: ObjectTail,
    usage: Vec<(usize, ObjectTail, Usage)>,
    logs: PathBuf,
    /// The position up to which lines are already known.
    known: Position,
}

/// A read position: the number of lines by file (`metrics`, `ranks`, `usage-0`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Position(BTreeMap<String, usize>);

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(name, lines)| format!("{name}.{lines}")).collect();
        f.write_str(&parts.join("_"))
    }
}

impl Position {
    /// Parses the output of `Display`. An invalid text is the beginning.
    #[cfg(any(test, feature = "live"))]
    pub(crate) fn parse(text: &str) -> Self {
        let parts = text.split('_').filter_map(|part| {
            let (name, lines) = part.split_once('.')?;
            Some((name.to_owned(), lines.parse().ok()?))
        });
        Self(parts.collect())
    }

    fn lines(&self, name: &str) -> usize {
        self.0.get(name).copied().unwrap_or_default()
    }
}

impl Tails {
    /// Opens the files of a run. Lines before the position `known` are skipped.
    pub(crate) fn new(folder: &Path, known: Position) -> Self {
        Self {
            metrics: ObjectTail::new(folder.join("metrics.jsonl")),
            by_rank: ObjectTail::new(folder.join("metrics-by-rank.jsonl")),
            usage: Vec::new(),
            logs: folder.join("logs"),
            known,
        }
    }

    /// Returns the position up to which the files were read.
    #[cfg(any(test, feature = "live"))]
    pub(crate) fn position(&self) -> Position {
        let two = [("metrics".to_owned(), self.metrics.lines()), ("ranks".to_owned(), self.by_rank.lines())];
        let usage = self.usage.iter().map(|(rank, tail, _)| (format!("usage-{rank}"), tail.lines()));
        Position(two.into_iter().chain(usage).collect())
    }

    /// Reads new lines. Calls `on_point` with each new point and `on_metrics_line` with each new line of metrics.
    /// Returns false if a file was replaced or truncated, so that all files must be read again.
    ///
    /// # Errors
    /// A message that names the file that cannot be read.
    pub(crate) fn read(
        &mut self,
        mut on_point: impl FnMut(Point),
        mut on_metrics_line: impl FnMut(&Object),
    ) -> Result<bool, String> {
        let problem = |tail: &ObjectTail, error: &std::io::Error| {
            let name = tail.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
            format!("{name} cannot be read: {error}")
        };
        let mut whole = true;
        let known = self.known.lines("metrics");
        let read = self.metrics.read(|number, line| {
            if number >= known {
                of_metrics(line).into_iter().for_each(&mut on_point);
                on_metrics_line(line);
            }
        });
        whole &= read.map_err(|error| problem(&self.metrics, &error))? != TailRead::Replaced;
        whole &= self.metrics.lines() >= known;
        let known = self.known.lines("ranks");
        let read = self.by_rank.read(|number, line| {
            if number >= known {
                of_rank(line).into_iter().for_each(&mut on_point);
            }
        });
        whole &= read.map_err(|error| problem(&self.by_rank, &error))? != TailRead::Replaced;
        whole &= self.by_rank.lines() >= known;
        self.find_usage();
        for (rank, tail, usage) in &mut self.usage {
            let known = self.known.lines(&format!("usage-{rank}"));
            let read = tail.read(|number, line| {
                // Rates need two lines, so known lines are read, too.
                let points = usage.points(*rank, line);
                if number >= known {
                    points.into_iter().for_each(&mut on_point);
                }
            });
            whole &= read.map_err(|error| problem(tail, &error))? != TailRead::Replaced;
            whole &= tail.lines() >= known;
        }
        Ok(whole)
    }

    /// Finds new usage files. Ranks create them when they start.
    fn find_usage(&mut self) {
        let entries = std::fs::read_dir(&self.logs).into_iter().flatten().flatten();
        for entry in entries {
            let name = entry.file_name();
            let rank = name.to_str().and_then(|name| rank_of(name, ".usage.jsonl"));
            let Some(rank) = rank.filter(|rank| *rank < MAX_RANKS) else { continue };
            if !self.usage.iter().any(|(known, ..)| *known == rank) {
                self.usage.push((rank, ObjectTail::new(entry.path()), Usage::default()));
            }
        }
        self.usage.sort_by_key(|(rank, ..)| *rank);
    }

    /// The files.
    pub(crate) fn files(&self) -> impl Iterator<Item = &ObjectTail> {
        [&self.metrics, &self.by_rank].into_iter().chain(self.usage.iter().map(|(_, tail, _)| tail))
    }

    /// Returns the last usage line of each rank.
    pub(crate) fn last_usage(&self) -> impl Iterator<Item = (usize, &Object)> {
        self.usage.iter().filter_map(|(rank, _, usage)| Some((*rank, usage.last()?)))
    }
}

/// Parses the rank of a file name `rank-N` with this ending.
pub(crate) fn rank_of(name: &str, ending: &str) -> Option<usize> {
    name.strip_prefix("rank-")?.strip_suffix(ending)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_lines_are_skipped() {
        let folder = tempfile::tempdir().expect("a folder");
        let logs = folder.path().join("logs");
        std::fs::create_dir(&logs).expect("a folder");
        let usage: String = (0..4)
            .map(|n| format!("{{\"time\":{n},\"step\":{n},\"network_sent_bytes\":{}}}\n", 100 * n * n))
            .collect();
        std::fs::write(logs.join("rank-3.usage.jsonl"), usage).expect("writes");
        std::fs::write(
            folder.path().join("metrics.jsonl"),
            "{\"step\":1,\"loss\":2.0}\n{\"step\":2,\"loss\":1.0}\n",
        )
        .expect("writes");
        let read = |known: &str| {
            let mut tails = Tails::new(folder.path(), Position::parse(known));
            let mut points = Vec::new();
            let whole = tails.read(|point| points.push((point.key, point.value)), |_| {}).expect("reads");
            (whole, points, tails.position().to_string())
        };
        let (whole, points, position) = read("");
        assert!(whole && points.len() == 5, "{points:?}");
        assert_eq!(position, "metrics.2_ranks.0_usage-3.4");
        let (whole, points, again) = read("metrics.1_usage-3.3");
        let rate = ("usage/3/network_sent".to_owned(), 500.0);
        assert_eq!(
            (whole, points, again),
            (true, vec![("metrics/loss".to_owned(), 1.0), rate], position.clone())
        );
        assert_eq!(read(&position).1, []);
        assert!(!read("metrics.3").0, "there are fewer lines than were known");
        assert!(read("nonsense.._").0);
    }
}
