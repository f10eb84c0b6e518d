//! Rules that stop hopeless trials: the median rule and successive halving.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::file::{Prune, PruneKind};
use phalanx_config::Goal;
use phalanx_run::Line;

/// The values of a trial at the steps of decisions.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rungs(BTreeMap<u64, f64>);

/// An earlier trial, with which a trial is compared.
#[derive(Debug, Clone, PartialEq)]
pub struct Peer {
    /// Its values.
    pub rungs: Rungs,
    /// True if it was trained to its end.
    pub finished: bool,
}

/// The decision to stop a trial.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StopDecision {
    /// The step of the decision.
    pub step: u64,
    /// The value that was compared.
    pub value: f64,
}

impl Prune {
    /// Returns the steps of decisions, in order.
    fn steps(&self) -> impl Iterator<Item = u64> {
        std::iter::successors(Some(self.after), |step| match self.kind {
            PruneKind::Median => step.checked_add(self.window()),
            PruneKind::Halving => step.checked_mul(self.factor()),
        })
    }

    /// Returns true if a trial of this value at `step` is to be stopped.
    ///
    /// - Median: it is worse than the median of the finished trials at this step, if there are [`Prune::startup`] of
    ///   them (Golovin et al. 2017, *Google Vizier*; `optuna.pruners.MedianPruner`).
    /// - Halving: it is not among the best 1 in [`Prune::factor`] of all trials that have reached this step, itself
    ///   included, and not the best (Li et al. 2018, *A System for Massively Parallel Hyperparameter Tuning*;
    ///   `optuna.pruners.SuccessiveHalvingPruner`).
    fn stops(&self, goal: Goal, step: u64, value: f64, peers: &[Peer]) -> bool {
        let cost = goal.cost(value);
        let reached = peers.iter().filter(|peer| peer.finished || self.kind == PruneKind::Halving);
        let mut costs: Vec<f64> =
            reached.filter_map(|peer| peer.rungs.0.get(&step)).map(|value| goal.cost(*value)).collect();
        match self.kind {
            PruneKind::Median => {
                costs.sort_by(f64::total_cmp);
                costs.len() >= self.startup().max(1) && cost > median(&costs)
            }
            PruneKind::Halving => {
                costs.push(cost);
                costs.sort_by(f64::total_cmp);
                let promoted = usize::try_from(self.factor()).map_or(0, |factor| costs.len() / factor);
                cost > costs[promoted.max(1) - 1]
            }
        }
    }

    /// Returns the first step at which a trial with these values is to be stopped.
    pub fn stop(&self, goal: Goal, rungs: &Rungs, peers: &[Peer]) -> Option<StopDecision> {
        let mut decisions = rungs.0.iter().map(|(step, value)| StopDecision { step: *step, value: *value });
        decisions.find(|decision| self.stops(goal, decision.step, decision.value, peers))
    }
}

/// Returns the median of sorted values, of which there is one at least.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}

impl Rungs {
    /// Reads the values of a trial from its lines of metrics: at each step of a decision the mean of `measure` over the
    /// lines of the last [`Prune::window`] steps. A step counts once a later line is there; one without a value is left
    /// out.
    pub fn of(lines: &[Line], prune: &Prune, measure: &str) -> Self {
        let last = lines.iter().map(Line::step).max().unwrap_or_default();
        let value = |step: u64| {
            let is_near = |line: &&Line| line.step() <= step && line.step() + prune.window() > step;
            let near = lines.iter().filter(is_near);
            let values: Vec<f64> = near.filter_map(|line| line.number(measure)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            (!values.is_empty()).then_some((step, mean))
        };
        Self(prune.steps().take_while(|step| *step < last).filter_map(value).collect())
    }

    /// Leaves out the values after `step`: those of a stopped trial depend on the time at which it stopped.
    #[must_use]
    pub fn until(mut self, step: u64) -> Self {
        self.0.retain(|at, _| *at <= step);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prune(text: &str) -> Prune {
        toml::from_str(text).expect("sound")
    }

    fn rungs(values: &[(u64, f64)]) -> Rungs {
        Rungs(values.iter().copied().collect())
    }

    fn peers(values: &[f64], finished: bool) -> Vec<Peer> {
        values.iter().map(|value| Peer { rungs: rungs(&[(10, *value)]), finished }).collect()
    }

    #[test]
    fn values_are_means_up_to_a_step_that_is_over() {
        let lines: Vec<Line> = (1..=8)
            .map(|at| {
                let line = Line::new(5 * at).with("loss", at);
                if at % 4 == 0 { line.with("test_accuracy", 0.1 * at as f64) } else { line }
            })
            .collect();
        let median = prune("kind = \"median\"\nafter = 10\nevery = 10");
        assert_eq!(Rungs::of(&lines, &median, "loss"), rungs(&[(10, 1.5), (20, 3.5), (30, 5.5)]));
        assert_eq!(Rungs::of(&lines, &median, "test_accuracy"), rungs(&[(20, 0.4)]), "40 may not be over");
        assert_eq!(Rungs::of(&lines, &median, "loss").until(20), rungs(&[(10, 1.5), (20, 3.5)]));
        let halving = prune("kind = \"halving\"\nafter = 5\nfactor = 3");
        assert_eq!(Rungs::of(&lines, &halving, "loss"), rungs(&[(5, 1.0), (15, 3.0)]));
        assert_eq!(Rungs::of(&[], &halving, "loss"), Rungs::default());
    }

    #[test]
    fn the_median_of_finished_trials_decides() {
        let median = prune("kind = \"median\"\nafter = 10\nevery = 10\nstartup = 4");
        for (goal, value, others, expected) in [
            (Goal::Min, 9.0, &[1.0, 2.0, 3.0][..], false),
            (Goal::Min, 2.6, &[1.0, 2.0, 3.0, 4.0], true),
            (Goal::Min, 2.5, &[1.0, 2.0, 3.0, 4.0], false),
            (Goal::Min, 3.5, &[5.0, 3.0, 1.0, 2.0, 4.0], true),
            (Goal::Max, 2.4, &[1.0, 2.0, 3.0, 4.0], true),
            (Goal::Max, 2.6, &[1.0, 2.0, 3.0, 4.0], false),
        ] {
            let stops = median.stops(goal, 10, value, &peers(others, true));
            assert_eq!(stops, expected, "{goal:?} {value} among {others:?}");
            assert!(!median.stops(goal, 20, value, &peers(others, true)), "no value at this step");
            assert!(!median.stops(goal, 10, value, &peers(others, false)), "none has finished");
        }
    }

    #[test]
    fn one_in_four_goes_on_by_successive_halving() {
        let halving = prune("kind = \"halving\"\nafter = 10");
        for (goal, value, others, expected) in [
            (Goal::Min, 9.0, &[][..], false),
            (Goal::Min, 2.0, &[3.0], false),
            (Goal::Min, 2.0, &[1.0], true),
            (Goal::Min, 2.0, &[2.0], false),
            (Goal::Min, 2.0, &[1.0, 3.0, 3.0, 3.0, 3.0, 3.0], true),
            (Goal::Min, 2.0, &[1.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0], false),
            (Goal::Max, 2.0, &[1.0, 1.0, 1.0], false),
            (Goal::Max, 0.5, &[1.0, 1.0, 1.0], true),
        ] {
            for finished in [true, false] {
                let stops = halving.stops(goal, 10, value, &peers(others, finished));
                assert_eq!(stops, expected, "{goal:?} {value} among {others:?}");
            }
        }
    }

    #[test]
    fn the_first_step_at_which_a_trial_is_worse_stops_it() {
        let median = prune("kind = \"median\"\nafter = 10\nevery = 10\nstartup = 1");
        let other = Peer { rungs: rungs(&[(10, 3.0), (20, 2.0), (30, 1.0)]), finished: true };
        let stop =
            |values: &[(u64, f64)]| median.stop(Goal::Min, &rungs(values), std::slice::from_ref(&other));
        assert_eq!(stop(&[(10, 2.0), (20, 2.5), (30, 0.5)]), Some(StopDecision { step: 20, value: 2.5 }));
        assert_eq!(stop(&[(10, 2.0), (20, 2.0), (30, 0.5)]), None);
        assert_eq!(
            median
                .stop(Goal::Min, &rungs(&[(10, f64::NAN)]), std::slice::from_ref(&other))
                .map(|stop| stop.step),
            Some(10)
        );
    }
}
