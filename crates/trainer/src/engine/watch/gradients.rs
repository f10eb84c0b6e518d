//! Detects gradients that jump: a damaged text, a rate that is too high, or the beginning of a divergence.

use std::collections::{BTreeMap, VecDeque};

use crate::engine::observer::UpdateReport;
use phalanx_config::WatchConfig;

/// The least number of norms that a median is taken of.
const LEAST: usize = 10;

/// Compares each norm of a gradient, where norms are computed, with the median of those before.
#[derive(Debug)]
pub(super) struct GradientWatch {
    window: usize,
    jump: f64,
    networks: BTreeMap<String, Norms>,
}

/// The last norms of a network.
#[derive(Debug, Default)]
struct Norms {
    last: VecDeque<f64>,
    /// True while norms stay high: the jump was reported.
    is_high: bool,
}

impl GradientWatch {
    pub(super) fn new(config: &WatchConfig) -> Self {
        Self { window: config.window, jump: config.gradient_jump, networks: BTreeMap::new() }
    }

    /// Adds the updates of a step, and returns the jumps that are new.
    pub(super) fn check(&mut self, updates: &[UpdateReport]) -> Vec<String> {
        let mut problems = Vec::new();
        if self.window == 0 || self.jump == 0.0 {
            return problems;
        }
        for update in updates {
            // A skipped update has no norm: scaled losses overflow now and then.
            let Some(norm) = update.gradient_norm else { continue };
            let norms = self.networks.entry(update.network.clone()).or_default();
            if let Some(median) = norms.jump(norm, self.jump) {
                let whose = match update.network.as_str() {
                    "" => String::new(),
                    network => format!(" of `{network}`"),
                };
                problems.push(format!(
                    "the gradient{whose} has jumped to a norm of {norm:.3e}: {:.0} times the median of the last {} steps",
                    norm / median,
                    norms.last.len()
                ));
            }
            norms.last.push_back(norm);
            while norms.last.len() > self.window {
                norms.last.pop_front();
            }
        }
        problems
    }
}

impl Norms {
    /// Returns the median of the norms before, if this one is a jump that is new.
    fn jump(&mut self, norm: f64, factor: f64) -> Option<f64> {
        if self.last.len() < LEAST {
            return None;
        }
        let mut sorted: Vec<f64> = self.last.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let median = sorted[sorted.len() / 2];
        let was_high = std::mem::replace(&mut self.is_high, norm > factor * median);
        (self.is_high && !was_high && median > 0.0).then_some(median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jumps(window: usize, norms: impl IntoIterator<Item = Option<f64>>) -> Vec<(usize, String)> {
        let mut watch = GradientWatch::new(&WatchConfig { window, ..WatchConfig::default() });
        let mut found = Vec::new();
        for (step, gradient_norm) in norms.into_iter().enumerate() {
            let update = UpdateReport { gradient_norm, ..UpdateReport::default() };
            found.extend(watch.check(&[update]).into_iter().map(|problem| (step, problem)));
        }
        found
    }

    #[test]
    fn a_jump_is_reported_once() {
        let usual = || (0..40).map(|step| Some(1.0 + 0.2 * f64::from(step % 5)));
        assert!(jumps(30, usual()).is_empty());
        let found = jumps(30, usual().chain([Some(50.0), Some(60.0)]).chain(usual()).chain([Some(70.0)]));
        let [(40, first), (82, _)] = &found[..] else { panic!("{found:?}") };
        assert!(first.contains("5.000e1: 36 times the median of the last 30 steps"), "{first}");
        // The first norms of a run, steps without norms, and runs that are not watched.
        assert!(jumps(30, (0..9).map(|_| Some(1.0)).chain([Some(90.0)])).is_empty());
        assert!(jumps(30, usual().chain([None, Some(1.0)])).is_empty());
        assert!(jumps(0, usual().chain([Some(50.0)])).is_empty());
    }
}
