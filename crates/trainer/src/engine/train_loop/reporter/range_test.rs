//! The end of a range test: the learning rate rises until the loss diverges.

use crate::engine::StepReport;
use phalanx_config::{Config, ScheduleKind};

/// True if the loss of a range test has diverged since its first step: it is not finite, or over twice as far from 0 as the first.
pub fn has_diverged(first: f64, loss: f64) -> bool {
    !loss.is_finite() || loss > first + first.abs()
}

/// Watches the losses of a run whose schedule is a range test (`schedule.kind = "range-test"`).
#[derive(Debug, Default)]
pub(super) struct RangeTest {
    /// The first loss of each phase.
    first: Vec<(String, f64)>,
}

impl RangeTest {
    /// The test that a run is, if it is one.
    pub(super) fn of(config: &Config) -> Option<Self> {
        (config.schedule.kind == ScheduleKind::RangeTest).then(Self::default)
    }

    /// Adds a step. Returns true if a loss has diverged.
    pub(super) fn is_over(&mut self, report: &StepReport) -> bool {
        report.phases.iter().any(|phase| {
            let first = match self.first.iter().find(|(name, _)| *name == phase.name) {
                Some((_, first)) => *first,
                None => {
                    self.first.push((phase.name.clone(), phase.loss));
                    phase.loss
                }
            };
            has_diverged(first, phase.loss)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::PhaseReport;

    /// The number of steps after which a test with these losses is over.
    fn steps(losses: &[f64]) -> Option<usize> {
        let config = Config::default();
        assert!(RangeTest::of(&config).is_none());
        let mut test = RangeTest::default();
        losses.iter().position(|loss| {
            let phase = PhaseReport { loss: *loss, ..PhaseReport::default() };
            test.is_over(&StepReport { phases: vec![phase], ..StepReport::default() })
        })
    }

    #[test]
    fn a_test_is_over_when_the_loss_diverges() {
        assert_eq!(steps(&[2.0, 1.0, 0.5, 3.9, 1.0]), None);
        assert_eq!(steps(&[2.0, 1.0, 0.5, 4.1, 1.0]), Some(3));
        assert_eq!(steps(&[2.0, f64::NAN]), Some(1));
        assert_eq!(steps(&[f64::INFINITY]), Some(0));
        assert_eq!(steps(&[-2.0, -3.0, -0.5, 0.5]), Some(3), "losses can be negative");
    }
}
