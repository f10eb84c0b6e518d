//! Warnings about a training that goes on: collapsed networks, and gradients that have jumped.

mod collapse;
mod gradients;

use super::StepReport;
use super::training::Phase;
use collapse::CollapseDetector;
use gradients::GradientWatch;
use phalanx_config::WatchConfig;

/// Watches the reports of a training's steps; see [`WatchConfig`].
#[derive(Debug)]
pub(super) struct Watch {
    collapse: CollapseDetector,
    gradients: GradientWatch,
}

impl Watch {
    /// Watches a training of these phases.
    pub(super) fn new(config: &WatchConfig, phases: Vec<&Phase>) -> Self {
        Self { collapse: CollapseDetector::new(config, phases), gradients: GradientWatch::new(config) }
    }

    /// Adds a step. Returns the problems that are new: a problem is reported again only if it had ended.
    pub(super) fn check(&mut self, report: &StepReport) -> Vec<String> {
        let mut problems = self.collapse.check(&report.phases);
        problems.extend(self.gradients.check(&report.updates));
        problems
    }
}
