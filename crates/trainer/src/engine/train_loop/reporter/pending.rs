//! Reports of steps that are not written yet.

use std::collections::VecDeque;

use crate::engine::StepReport;
use crate::engine::train_loop::step::UnreadStep;

/// A step whose report is not written yet.
pub(in crate::engine::train_loop) enum PendingStep {
    /// The device may still compute the losses.
    Unread(UnreadStep),
    /// The losses of some ranks are missing. Only ranks that do not step together have such steps.
    Partial(PartialReport),
    /// All losses are known.
    Complete(CompleteReport),
}

/// The report of a step that lacks the losses of some ranks.
pub(in crate::engine::train_loop) struct PartialReport {
    pub(in crate::engine::train_loop) report: StepReport,
    /// The phases of the step, by index.
    pub(in crate::engine::train_loop) phases: Vec<usize>,
    /// True if the step has a line of metrics.
    pub(in crate::engine::train_loop) is_logged: bool,
}

/// The report of a step with the losses of all ranks; without any on ranks other than 0.
pub(in crate::engine::train_loop) struct CompleteReport {
    pub(in crate::engine::train_loop) report: StepReport,
    /// True if the step has a line of metrics.
    pub(in crate::engine::train_loop) is_logged: bool,
}

/// The steps whose reports are not written yet, in order: complete ones, then partial ones, then an unread one.
#[derive(Default)]
pub(in crate::engine::train_loop) struct PendingSteps(VecDeque<PendingStep>);

impl PendingSteps {
    /// Adds the newest step.
    pub(in crate::engine::train_loop) fn push(&mut self, step: PendingStep) {
        self.0.push_back(step);
    }

    /// Adds the complete report of the newest step.
    pub(in crate::engine::train_loop) fn push_complete(&mut self, report: StepReport, is_logged: bool) {
        self.push(PendingStep::Complete(CompleteReport { report, is_logged }));
    }

    /// Takes the newest step if it is unread.
    pub(super) fn take_unread(&mut self) -> Option<UnreadStep> {
        match self.0.pop_back() {
            Some(PendingStep::Unread(step)) => Some(step),
            other => {
                self.0.extend(other);
                None
            }
        }
    }

    /// Takes the oldest step if it is complete.
    pub(super) fn take_complete(&mut self) -> Option<CompleteReport> {
        match self.0.pop_front() {
            Some(PendingStep::Complete(report)) => Some(report),
            other => {
                other.into_iter().for_each(|step| self.0.push_front(step));
                None
            }
        }
    }

    /// True if the report of the oldest step can be written.
    pub(super) fn has_complete(&self) -> bool {
        matches!(self.0.front(), Some(PendingStep::Complete(_)))
    }

    fn first_partial(&self) -> Option<usize> {
        self.0.iter().position(|step| matches!(step, PendingStep::Partial(_)))
    }

    /// The number of the oldest partial step.
    pub(super) fn partial_step(&self) -> Option<u64> {
        match self.0.get(self.first_partial()?)? {
            PendingStep::Partial(PartialReport { report, .. }) => Some(report.step),
            _ => None,
        }
    }

    /// Takes the oldest partial step.
    pub(super) fn take_partial(&mut self) -> Option<PartialReport> {
        match self.0.remove(self.first_partial()?)? {
            PendingStep::Partial(report) => Some(report),
            _ => None,
        }
    }

    /// True if there is a partial step.
    pub(super) fn has_partial(&self) -> bool {
        self.first_partial().is_some()
    }

    /// Puts a report that has become complete before all steps that are not.
    pub(super) fn complete(&mut self, report: CompleteReport) {
        let at = self.0.iter().take_while(|step| matches!(step, PendingStep::Complete(_))).count();
        self.0.insert(at, PendingStep::Complete(report));
    }

    /// Removes partial steps up to `written`: the first rank has written their reports.
    pub(in crate::engine::train_loop) fn forget_partial(&mut self, written: u64) {
        self.0.retain(|step| !matches!(step, PendingStep::Partial(open) if open.report.step <= written));
    }

    /// Removes all steps.
    pub(in crate::engine::train_loop) fn clear(&mut self) {
        self.0.clear();
    }
}
