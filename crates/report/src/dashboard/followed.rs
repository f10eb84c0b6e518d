//! The new lines of metrics and the status of a run, as it writes them.

use super::model::{Model, Status};
use super::source::Source;
use super::tail::TextTail;
use phalanx_run::{Line, RunFolder};

/// A run whose files are followed.
#[derive(Debug)]
pub(crate) struct FollowedRun {
    source: Source,
    model: Model,
    metrics: TextTail,
}

/// The changes since the last poll.
#[derive(Debug)]
pub(crate) struct RunNews {
    /// True if a resumption has replaced the metrics: `lines` are then all lines.
    pub(crate) restarted: bool,
    /// The new lines of metrics.
    pub(crate) lines: Vec<Line>,
    /// The status.
    pub(crate) status: Status,
}

impl FollowedRun {
    /// Follows the run in a folder from its first line.
    pub(crate) fn new(folder: &RunFolder) -> Self {
        let metrics = TextTail::whole(&folder.metrics());
        Self { source: Source::new(folder, None), model: Model::default(), metrics }
    }

    /// Reads the files.
    pub(crate) fn poll(&mut self) -> RunNews {
        // The state comes first, so that all lines are there when the run has ended.
        self.source.poll(&mut self.model);
        let news = self.metrics.poll();
        let lines = news.lines.iter().filter_map(|line| Line::parse(line)).collect();
        RunNews { restarted: news.restarted, lines, status: self.model.status() }
    }

    /// Returns all that is known of the run.
    pub(super) fn model(&self) -> &Model {
        &self.model
    }
}
