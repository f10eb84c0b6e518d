//! The progress of a run: its step of how many, and the remaining time.

use std::path::Path;
use std::time::Duration;

use phalanx_run::{RunActivity, RunState};
use serde::Serialize;

/// The number of lines of metrics over which the pace is measured.
pub(crate) const PACE_LINES: usize = 20;

/// The progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub(crate) struct Progress {
    /// The last completed step.
    pub(crate) step: u64,
    /// The last step of the run; 0 if unknown.
    pub(crate) total: u64,
    /// The remaining seconds at the pace of the last lines of metrics; `None` if unknown.
    pub(crate) left: Option<f64>,
    /// True if a user has paused it.
    pub(crate) paused: bool,
}

impl Progress {
    /// Returns the progress of the run in a folder. `last` is the last step of its lines, and `recent` the steps and the
    /// seconds of training of its last lines.
    pub(crate) fn of(folder: &Path, last: u64, recent: &[(f64, f64)]) -> Self {
        let state = RunState::read(&folder.join("state.json")).unwrap_or_default();
        let step = state.step.max(last);
        let recent = &recent[recent.len().saturating_sub(PACE_LINES)..];
        let pace = match (recent.first(), recent.last()) {
            (Some((first, begun)), Some((last, ended))) if last > first && ended > begun => {
                Some((last - first) / (ended - begun))
            }
            _ => None,
        };
        let steps = (state.total > 0).then(|| state.total.saturating_sub(step) as f64);
        let left = steps.zip(pace).map(|(steps, pace)| steps / pace).filter(|left| left.is_finite());
        let paused = state.doing == RunActivity::Paused;
        Self { step, total: state.total, left: left.filter(|_| !paused), paused }
    }

    /// Returns the share of the steps that are done; `None` if the number of steps is unknown.
    pub(crate) fn share(&self) -> Option<f64> {
        (self.total > 0).then(|| (self.step as f64 / self.total as f64).min(1.0))
    }

    /// Returns the remaining time.
    pub(crate) fn time_left(&self) -> Option<Duration> {
        self.left.and_then(|left| Duration::try_from_secs_f64(left).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remaining_time_follows_from_the_last_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(Progress::of(folder.path(), 7, &[]), Progress { step: 7, ..Progress::default() });
        let state = RunState { step: 50, total: 100, ..RunState::default() };
        state.write(&folder.path().join("state.json")).expect("writes");
        // The first steps were slow, and a resumed run counts on.
        let slow = (1..=10).map(|step| (f64::from(step), 100.0 * f64::from(step)));
        let fast = (20..=39).map(|step| (f64::from(step), 2000.0 + 0.5 * f64::from(step)));
        let recent: Vec<_> = slow.chain(fast).collect();
        let progress = Progress::of(folder.path(), 39, &recent);
        assert_eq!(progress, Progress { step: 50, total: 100, left: Some(25.0), paused: false });
        assert_eq!((progress.share(), progress.time_left()), (Some(0.5), Some(Duration::from_secs(25))));
        assert_eq!(Progress::of(folder.path(), 39, &recent[..1]).left, None);
        assert_eq!(Progress::of(folder.path(), 120, &recent).share(), Some(1.0));
    }
}
