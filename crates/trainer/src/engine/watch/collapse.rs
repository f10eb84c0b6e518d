//! Detects the collapse of adversarial networks while they train.
//!
//! A discriminator and a generator keep each other's losses moving as long as both learn. When one has won, both losses come to rest:
//! near 0 for the one, at a high value for the other. When a network has died, the loss rests at any value. When the generator has
//! collapsed to one mode, a measure of the diversity of samples falls towards 0. [`crate::engine::Training::watched`] marks such phases; the
//! section `[watch]` sets the window and the bounds.

use std::collections::{BTreeSet, VecDeque};

use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;
use phalanx_config::WatchConfig;

/// Detects collapsed networks by the losses and measures of watched phases.
#[derive(Debug)]
pub(super) struct CollapseDetector {
    config: WatchConfig,
    phases: Vec<WatchedPhase>,
}

/// The last losses and measures of a phase.
#[derive(Debug)]
struct WatchedPhase {
    name: String,
    /// The measure that stands for the loss.
    loss: Option<String>,
    losses: VecDeque<f64>,
    measures: Vec<(String, VecDeque<f64>)>,
    /// The problems that were reported and persist.
    reported: BTreeSet<String>,
}

impl CollapseDetector {
    /// Creates the detector of the watched phases among these.
    pub(super) fn new(config: &WatchConfig, phases: Vec<&Phase>) -> Self {
        let watched = phases.into_iter().filter_map(|phase| {
            let measures = phase.watched.as_ref()?.iter();
            let measures = measures.map(|name| (name.clone(), VecDeque::new())).collect();
            let losses = VecDeque::new();
            let (name, loss) = (phase.name.clone(), phase.watched_loss.clone());
            Some(WatchedPhase { name, loss, losses, measures, reported: BTreeSet::new() })
        });
        Self { config: config.clone(), phases: watched.collect() }
    }

    /// Adds a step. Returns the problems that are new: a problem is reported again only if it had ended.
    pub(super) fn check(&mut self, reports: &[PhaseReport]) -> Vec<String> {
        let mut problems = Vec::new();
        if self.config.window == 0 {
            return problems;
        }
        for phase in &mut self.phases {
            if let Some(report) = reports.iter().find(|report| report.name == phase.name) {
                phase.add(report, &self.config, &mut problems);
            }
        }
        problems
    }
}

impl WatchedPhase {
    fn add(&mut self, report: &PhaseReport, config: &WatchConfig, problems: &mut Vec<String>) {
        let window = config.window;
        let mut found = Vec::new();
        let stands = |name: &String| report.measures.iter().find(|(measured, _)| measured == name);
        let loss = self.loss.as_ref().and_then(stands).map_or(report.loss, |(_, value)| *value);
        push(&mut self.losses, loss, window);
        if self.losses.len() == window {
            let mean = mean(&self.losses);
            let (low, high) = bounds(&self.losses);
            let loss = self.loss.as_ref().map_or_else(|| "the loss".to_owned(), |loss| format!("`{loss}`"));
            let what = format!("{loss} of phase `{}`", self.name);
            if mean < config.low_loss {
                let problem =
                    format!("{what} was {mean:.2e} on average over {window} steps: one network has won");
                found.push(("low", problem));
            } else if mean > config.high_loss {
                let problem =
                    format!("{what} was {mean:.1} on average over {window} steps: one network has lost");
                found.push(("high", problem));
            }
            if window > 1 && high - low < config.still_loss * mean.abs() {
                found.push((
                    "still",
                    format!("{what} has stayed at {mean:.4} for {window} steps: nothing is learnt"),
                ));
            }
        }
        for (name, values) in &mut self.measures {
            let Some((_, value)) = report.measures.iter().find(|(measured, _)| measured == name) else {
                continue;
            };
            push(values, *value, window);
            let mean = mean(values);
            if values.len() == window && mean < config.low_measure {
                let phase = &self.name;
                let problem = format!(
                    "`{name}` of phase `{phase}` was {mean:.2e} on average over {window} steps: samples are alike"
                );
                found.push((name.as_str(), problem));
            }
        }
        let now: BTreeSet<String> = found.iter().map(|(kind, _)| (*kind).to_owned()).collect();
        problems.extend(
            found.into_iter().filter(|(kind, _)| !self.reported.contains(*kind)).map(|(_, problem)| problem),
        );
        self.reported = now;
    }
}

fn push(values: &mut VecDeque<f64>, value: f64, window: usize) {
    values.push_back(value);
    while values.len() > window {
        values.pop_front();
    }
}

fn mean(values: &VecDeque<f64>) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn bounds(values: &VecDeque<f64>) -> (f64, f64) {
    values
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| (low.min(*value), high.max(*value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems reported in these steps, each with a loss and a measure.
    fn reported(window: usize, steps: impl IntoIterator<Item = (f64, f64)>) -> Vec<(usize, String)> {
        let mut watched = Phase::new("judge", Vec::new());
        (watched.measures, watched.watched) = (vec!["spread".to_owned()], Some(vec!["spread".to_owned()]));
        let ignored = Phase::new("other", Vec::new());
        let config = WatchConfig { window, ..WatchConfig::default() };
        let mut watch = CollapseDetector::new(&config, vec![&watched, &ignored]);
        let mut reported = Vec::new();
        for (step, (loss, spread)) in steps.into_iter().enumerate() {
            let report = |name: &str| {
                let measures = vec![("spread".to_owned(), spread)];
                PhaseReport { name: name.to_owned(), loss, measures }
            };
            let problems = watch.check(&[report("judge"), report("other")]);
            reported.extend(problems.into_iter().map(|problem| (step, problem)));
        }
        reported
    }

    /// Losses around a number.
    fn around(loss: f64, spread: f64) -> impl Iterator<Item = (f64, f64)> {
        (0..).map(move |step| (loss * (1.0 + 0.1 * f64::from(step % 3)), spread))
    }

    #[test]
    fn a_collapse_is_reported_once() {
        for (loss, said) in [(1e-3, "one network has won"), (40.0, "one network has lost")] {
            let told = reported(5, around(loss, 1.0).take(30));
            let [(step, problem)] = told.as_slice() else { panic!("{told:?}") };
            assert!(*step == 4 && problem.contains(said) && problem.contains("`judge`"), "{told:?}");
        }
        let told_of = reported(5, (0..30).map(|_| (0.7, 1.0)));
        assert!(told_of.len() == 1 && told_of[0].1.contains("0.7000 for 5 steps"), "{told_of:?}");
        let told_of = reported(5, around(0.7, 1e-3).take(30));
        assert!(told_of.len() == 1 && told_of[0].1.contains("samples are alike"), "{told_of:?}");
    }

    #[test]
    fn a_measure_stands_for_the_loss() {
        let mut watched = Phase::new("judge", Vec::new());
        (watched.watched, watched.watched_loss) = (Some(Vec::new()), Some("contest".to_owned()));
        let config = WatchConfig { window: 2, ..WatchConfig::default() };
        let mut watch = CollapseDetector::new(&config, vec![&watched]);
        let mut check = |loss: f64, contest: f64| {
            let measures = vec![("contest".to_owned(), contest)];
            watch.check(&[PhaseReport { name: "judge".to_owned(), loss, measures }])
        };
        assert!(check(40.0, 0.7).is_empty() && check(40.0, 0.9).is_empty());
        let said = [check(0.7, 40.0), check(0.7, 45.0)].concat();
        assert!(said.len() == 1 && said[0].starts_with("`contest` of phase `judge` was 20"), "{said:?}");
    }

    #[test]
    fn moving_losses_are_not_reported_and_a_second_collapse_is() {
        assert!(reported(5, around(0.7, 0.5).take(50)).is_empty());
        // A single step is no collapse, and without a window nothing is.
        assert!(
            reported(5, around(0.7, 0.5).take(4).chain([(1e-9, 0.0)]).chain(around(0.7, 0.5).take(9)))
                .is_empty()
        );
        assert!(reported(0, (0..30).map(|_| (0.0, 0.0))).is_empty());
        let twice =
            around(1e-3, 1.0).take(10).chain(around(0.7, 1.0).take(10)).chain(around(1e-3, 1.0).take(10));
        assert_eq!(reported(5, twice).into_iter().map(|(step, _)| step).collect::<Vec<_>>(), [4, 24]);
    }
}
