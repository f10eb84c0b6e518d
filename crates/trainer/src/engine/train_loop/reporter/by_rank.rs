//! The losses of each rank and step, where ranks do not step together.

use crate::engine::TrainError;
use crate::engine::observer::named;
use crate::engine::train_loop::rank_report::{RankReport, phase_reports};
use crate::engine::training::Phase;
use phalanx_run::{Line, MetricsWriter, RunFolder};

/// Writes a line for each rank and step.
#[derive(Debug)]
pub(super) struct LossesByRank {
    lines: MetricsWriter,
    /// Seconds of training before the run was resumed.
    before: f64,
}

impl LossesByRank {
    /// Opens the file of a run that has done `step` steps in `before` seconds.
    pub(super) fn open(folder: &RunFolder, step: u64, before: f64) -> Result<Self, TrainError> {
        Ok(Self { lines: MetricsWriter::open(&folder.metrics_by_rank(), step)?, before })
    }

    /// Writes the reports of a step with these phases. Reports are parts of the mean over all ranks, so the mean of one rank is the part
    /// times the number of ranks.
    pub(super) fn write(
        &mut self,
        step: u64,
        phases: &[&Phase],
        reports: &[RankReport],
    ) -> Result<(), TrainError> {
        for RankReport { rank, seconds, sums, .. } in reports {
            let mut line = Line::new(step).with("rank", *rank).with("seconds", self.before + seconds);
            for phase in phase_reports(phases, sums) {
                line = line.with(&named(&phase.name, "loss"), phase.loss * reports.len() as f64);
            }
            self.lines.write(&line)?;
        }
        Ok(())
    }
}
