//! The dashboard's model of a run. It is filled from lines of files and independent of the terminal.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use image::RgbImage;

use super::curve::Curve;
use super::usage::Recent;
use phalanx_run::{Line, RunActivity, RunState, Summary, UsageLine};

/// The number of log lines kept.
const LOG_LINES: usize = 5000;

/// The number of metrics lines over which the pace is computed, for the remaining time.
const PACE_LINES: usize = 20;

/// The status of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Status {
    /// It has not started yet.
    Starting,
    /// It trains.
    Training,
    /// It takes no step until it is resumed.
    Paused,
    /// It has ended, with the status of its summary: `finished` or `interrupted`.
    Ended(String),
    /// It has failed, with this message.
    Failed(String),
    /// Its process has ended without a report.
    Gone,
}

impl Status {
    /// Returns true if the run no longer takes requests.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Failed(_) | Self::Gone)
    }
}

/// A line of a rank's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LogLine {
    /// The rank; `None` for messages of the dashboard.
    pub(super) rank: Option<usize>,
    pub(super) text: String,
}

/// The last grid of samples.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// The file's name.
    pub(super) name: String,
    pub(super) picture: Arc<RgbImage>,
}

/// The displayed data.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// The run's name.
    pub(super) name: String,
    pub(super) state: Option<RunState>,
    /// True if the run's process is alive; `None` if unknown.
    pub(super) alive: Option<bool>,
    pub(super) summary: Option<Summary>,
    /// The failure of a rank.
    pub(super) failure: Option<String>,
    /// The curves by metric, in the order of their first appearance.
    curves: Vec<(String, Curve)>,
    last: Option<Line>,
    /// Steps and seconds of the last lines.
    pace: VecDeque<(u64, f64)>,
    pub(super) ranks: BTreeMap<usize, Recent>,
    pub(super) log: VecDeque<LogLine>,
    /// The number of dropped log lines.
    pub(super) log_dropped: usize,
    pub(super) sample: Option<Sample>,
}

impl Model {
    /// Creates an empty model with a name.
    pub(super) fn of(name: String) -> Self {
        Self { name, ..Self::default() }
    }

    /// Adds a line of `metrics.jsonl`. Ignores lines that are no JSON objects.
    pub(super) fn take_metrics(&mut self, text: &str) {
        let Some(line) = Line::parse(text) else { return };
        for (name, value) in line.numbers() {
            if !self.curves.iter().any(|(known, _)| known == name) {
                self.curves.push((name.to_owned(), Curve::default()));
            }
            if let Some((_, curve)) = self.curves.iter_mut().find(|(known, _)| known == name) {
                curve.push(line.step(), value);
            }
        }
        if let Some(seconds) = line.number("seconds") {
            self.pace.push_back((line.step(), seconds));
            if self.pace.len() > PACE_LINES {
                self.pace.pop_front();
            }
        }
        self.last = Some(line);
    }

    /// Clears all lines of `metrics.jsonl`: the run was resumed and its file was rewritten.
    pub(super) fn forget_metrics(&mut self) {
        self.curves.clear();
        self.pace.clear();
        self.last = None;
    }

    /// Adds a line of `logs/rank-N.usage.jsonl`. Ignores invalid lines.
    pub(super) fn take_usage(&mut self, rank: usize, text: &str) {
        if let Ok(usage) = serde_json::from_str::<UsageLine>(text) {
            self.ranks.entry(rank).or_default().push(usage);
        }
    }

    /// Adds a log line.
    pub(super) fn take_log(&mut self, rank: Option<usize>, text: &str) {
        // Control characters are removed: a terminal would execute them.
        let text = text.replace('\t', "    ").chars().filter(|c| !c.is_control()).collect();
        self.log.push_back(LogLine { rank, text });
        if self.log.len() > LOG_LINES {
            self.log.pop_front();
            self.log_dropped += 1;
        }
    }

    /// Returns the curve of a metric.
    pub(super) fn curve(&self, name: &str) -> Option<&Curve> {
        self.curves.iter().find(|(known, _)| known == name).map(|(_, curve)| curve)
    }

    /// Returns the names of the metrics.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.curves.iter().map(|(name, _)| name.as_str())
    }

    /// Returns the measure that leads, without the prefix of the test split.
    pub(super) fn headline(&self) -> Option<&str> {
        let headline = self.state.as_ref()?.headline.as_deref()?;
        Some(headline.strip_prefix("test_").unwrap_or(headline))
    }

    /// Returns the newest value of a metric.
    pub(super) fn latest(&self, name: &str) -> Option<f64> {
        self.curve(name)?.last()
    }

    /// Returns the status.
    pub(super) fn status(&self) -> Status {
        let by_summary = || self.summary.as_ref().map(|summary| Status::Ended(summary.status.clone()));
        let failed = || self.failure.clone().map(Status::Failed);
        let Some(state) = &self.state else {
            return by_summary().or_else(failed).unwrap_or(Status::Starting);
        };
        match state.doing {
            RunActivity::Ended => by_summary().unwrap_or_else(|| Status::Ended("ended".to_owned())),
            RunActivity::Failed => failed().unwrap_or_else(|| Status::Failed("see its log".to_owned())),
            RunActivity::Training | RunActivity::Paused if self.alive == Some(false) => {
                failed().unwrap_or(Status::Gone)
            }
            RunActivity::Training => Status::Training,
            RunActivity::Paused => Status::Paused,
        }
    }

    /// Returns the last step in any file.
    pub(super) fn step(&self) -> u64 {
        let of_state = self.state.as_ref().map(|state| state.step);
        let of_ranks = self.ranks.values().filter_map(|recent| recent.last()).map(|usage| usage.step).max();
        let of_metrics = self.last.as_ref().map(Line::step);
        let of_summary = self.summary.as_ref().map(|summary| summary.step);
        match self.status().is_over() {
            true => of_summary.or(of_state).or(of_metrics),
            false => [of_state, of_ranks, of_metrics].into_iter().flatten().max(),
        }
        .unwrap_or_default()
    }

    /// Returns the last step of the run.
    pub(super) fn total(&self) -> Option<u64> {
        let finished = || self.summary.as_ref().filter(|summary| summary.status == "finished");
        self.state.as_ref().map(|state| state.total).or_else(|| Some(finished()?.step))
    }

    /// Returns the steps per second over the last lines.
    pub(super) fn pace(&self) -> Option<f64> {
        let ((first, begun), (last, ended)) = (self.pace.front()?, self.pace.back()?);
        (ended > begun && last > first).then(|| (last - first) as f64 / (ended - begun))
    }

    /// Returns the remaining time at the pace of the last lines; `None` once training is over.
    pub(super) fn left(&self) -> Option<Duration> {
        if self.status().is_over() {
            return None;
        }
        let steps = self.total()?.saturating_sub(self.step());
        Duration::try_from_secs_f64(steps as f64 / self.pace()?).ok()
    }

    /// Returns the total watts of all ranks, and `measured` or `estimated`.
    pub(super) fn watts(&self) -> Option<(f64, String)> {
        let last = || self.ranks.values().filter_map(Recent::last);
        let watts: Vec<f64> = last().filter_map(UsageLine::watts).collect();
        let kind = last().find_map(|usage| usage.energy).map(|kind| kind.to_string()).unwrap_or_default();
        (!watts.is_empty()).then(|| (watts.iter().sum(), kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_pace_and_the_end_follow_from_lines_of_metrics() {
        let mut model = Model::default();
        let state = RunState { total: 100, ..RunState::default() };
        model.state = Some(state);
        for step in [1_u64, 10, 20] {
            model.take_metrics(&format!(
                r#"{{"step":{step},"loss":{},"critic_loss":2.0,"seconds":{},"lr":0.1,"test_loss":null}}"#,
                1.0 / step as f64,
                step as f64 / 2.0
            ));
        }
        model.take_metrics(r#"{"step":30,"lo"#);
        assert_eq!(model.names().collect::<Vec<_>>(), ["loss", "critic_loss", "seconds", "lr"]);
        assert_eq!(model.curve("loss").and_then(Curve::last), Some(0.05));
        assert_eq!((model.step(), model.pace()), (20, Some(2.0)));
        assert_eq!(model.left(), Some(Duration::from_secs(40)));
        model.take_usage(1, r#"{"time":5.0,"step":24,"rank":1}"#);
        assert_eq!((model.step(), model.left()), (24, Some(Duration::from_secs(38))));
        model.forget_metrics();
        assert_eq!((model.names().count(), model.pace()), (0, None));
    }

    #[test]
    fn how_a_run_is_follows_from_its_state_its_process_and_its_summary() {
        let mut model = Model::default();
        assert_eq!(model.status(), Status::Starting);
        let state = |doing| Some(RunState { doing, step: 7, ..RunState::default() });
        model.state = state(RunActivity::Training);
        assert_eq!(model.status(), Status::Training);
        model.alive = Some(true);
        model.state = state(RunActivity::Paused);
        assert_eq!(model.status(), Status::Paused);
        model.alive = Some(false);
        assert_eq!(model.status(), Status::Gone);
        model.failure = Some("rank 1 failed: no such image".to_owned());
        assert_eq!(model.status(), Status::Failed("rank 1 failed: no such image".to_owned()));
        let summary = Summary { status: "interrupted".to_owned(), step: 5, ..Summary::default() };
        model.summary = Some(summary);
        // That summary is of an attempt before.
        assert!(matches!(model.status(), Status::Failed(_)));
        model.state = state(RunActivity::Ended);
        assert_eq!((model.status(), model.step()), (Status::Ended("interrupted".to_owned()), 5));
        assert!(model.status().is_over());
    }

    #[test]
    fn logs_keep_their_last_lines_and_nothing_that_a_terminal_would_obey() {
        let mut model = Model::default();
        for number in 0..LOG_LINES + 3 {
            model.take_log(Some(0), &format!("line {number}"));
        }
        model.take_log(Some(1), "a\tb\u{1b}[2Jc");
        assert_eq!((model.log.len(), model.log_dropped), (LOG_LINES, 4));
        assert_eq!(model.log[0].text, "line 4");
        assert_eq!(model.log.back().map(|line| line.text.as_str()), Some("a    b[2Jc"));
    }

    #[test]
    fn power_is_that_of_all_ranks() {
        let mut model = Model::default();
        assert_eq!(model.watts(), None);
        model.take_usage(0, r#"{"step":1,"cpu_watts":10.5,"gpu_watts":null,"energy":"estimated"}"#);
        model.take_usage(1, r#"{"step":1,"cpu_watts":4.5,"gpu_watts":100.0,"energy":"estimated"}"#);
        assert_eq!(model.watts(), Some((115.0, "estimated".to_owned())));
    }
}
