//! What each rank has measured in each step, where ranks do not take every step together: when it was done, and its loss.

use super::losses::{Told, reports};
use crate::engine::TrainError;
use crate::engine::observer::named;
use crate::engine::training::Phase;
use phalanx_run::{Line, MetricsWriter, RunFolder};

/// Writes a line for each rank and step.
#[derive(Debug)]
pub(super) struct ByRank {
    lines: MetricsWriter,
    /// Seconds of training before the run was resumed.
    before: f64,
}

impl ByRank {
    /// Those of a run that has done `step` steps in `before` seconds.
    pub(super) fn open(folder: &RunFolder, step: u64, before: f64) -> Result<Self, TrainError> {
        Ok(Self { lines: MetricsWriter::open(&folder.metrics_by_rank(), step)?, before })
    }

    /// Writes what all ranks have told of a step that had these phases. Sums are told as parts of the mean over all ranks; a rank's own
    /// mean is as many times as large.
    pub(super) fn write(&mut self, step: u64, phases: &[&Phase], told: &[Told]) -> Result<(), TrainError> {
        for Told { rank, seconds, sums, .. } in told {
            let mut line = Line::new(step).with("rank", *rank).with("seconds", self.before + seconds);
            for phase in reports(phases, sums) {
                line = line.with(&named(&phase.name, "loss"), phase.loss * told.len() as f64);
            }
            self.lines.write(&line)?;
        }
        Ok(())
    }
}
