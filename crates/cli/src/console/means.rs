//! Means of losses and measures over the steps since the last line.

use phalanx_trainer::engine::{PhaseReport, StepReport};

/// The sums of losses and measures over some steps, by phase.
#[derive(Debug, Default)]
pub(super) struct StepMeans(Vec<PhaseSum>);

/// The sums of a phase, and the number of its steps.
#[derive(Debug)]
struct PhaseSum {
    sum: PhaseReport,
    steps: f64,
}

impl StepMeans {
    /// Adds the losses and measures of a step.
    pub(super) fn add(&mut self, report: &StepReport) {
        for phase in &report.phases {
            match self.0.iter_mut().find(|known| known.sum.name == phase.name) {
                None => self.0.push(PhaseSum { sum: phase.clone(), steps: 1.0 }),
                Some(known) => {
                    known.steps += 1.0;
                    known.sum.loss += phase.loss;
                    let pairs = known.sum.measures.iter_mut().zip(&phase.measures);
                    pairs.for_each(|((_, sum), (_, value))| *sum += value);
                }
            }
        }
    }

    /// Returns the means over the steps, by phase.
    pub(super) fn phases(&self) -> Vec<PhaseReport> {
        let mean = |PhaseSum { sum, steps }: &PhaseSum| PhaseReport {
            name: sum.name.clone(),
            loss: sum.loss / steps,
            measures: sum.measures.iter().map(|(name, sum)| (name.clone(), sum / steps)).collect(),
        };
        self.0.iter().map(mean).collect()
    }

    /// Begins anew, after a line.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_are_means_over_their_own_steps() {
        let phase = |name: &str, loss: f64, measure: f64| PhaseReport {
            name: name.to_owned(),
            loss,
            measures: vec![("accuracy".to_owned(), measure)],
        };
        let step = |phases: Vec<PhaseReport>| StepReport { phases, ..StepReport::default() };
        let mut means = StepMeans::default();
        means.add(&step(vec![phase("a", 1.0, 0.5)]));
        means.add(&step(vec![phase("a", 2.0, 0.25), phase("b", 8.0, 1.0)]));
        assert_eq!(means.phases(), [phase("a", 1.5, 0.375), phase("b", 8.0, 1.0)]);
        means.clear();
        means.add(&step(vec![phase("b", 3.0, 0.0)]));
        assert_eq!(means.phases(), [phase("b", 3.0, 0.0)]);
    }
}
