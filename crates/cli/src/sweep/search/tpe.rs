//! The tree-structured Parzen estimator (TPE; Bergstra et al. 2011, *Algorithms for Hyper-Parameter Optimization*).
//!
//! Each key is drawn alone, as by Optuna's `TPESampler(multivariate=False)`: the observations are split into the better
//! ones and the others, a density is estimated of each, and of candidates drawn from the first density the one with the
//! largest ratio of both is taken.

use std::cmp::Ordering;

use phalanx_tensor::Key;

use super::parzen::Parzen;
use super::space::SearchKey;

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq)]
pub struct Observation {
    /// The value of each key, in the order of the names; of a choice, its number.
    pub values: Vec<f64>,
    /// The measure, with the sign by which smaller is better.
    pub cost: f64,
    /// The step at which the trial was stopped by a rule. `cost` is then the value that the rule compared.
    pub pruned: Option<u64>,
}

/// Returns the number of observations that count as better ones: a tenth, at most 25.
fn better(count: usize) -> usize {
    count.div_ceil(10).min(25)
}

/// Orders two observations, the better one first: finished trials by their measure, then stopped ones, by the step that
/// they have reached and by their value there, as Optuna does.
fn order(a: &Observation, b: &Observation) -> Ordering {
    let reached = |of: &Observation| of.pruned.unwrap_or(u64::MAX);
    reached(b).cmp(&reached(a)).then(a.cost.total_cmp(&b.cost))
}

/// Returns for each observation if it is one of the better ones.
fn split(seen: &[Observation]) -> Vec<bool> {
    let mut places: Vec<usize> = (0..seen.len()).collect();
    places.sort_by(|a, b| order(&seen[*a], &seen[*b]));
    let mut is_better = vec![false; seen.len()];
    places.iter().take(better(seen.len())).for_each(|place| is_better[*place] = true);
    is_better
}

/// Draws the value of the key number `at` from the observations of earlier trials, the oldest first.
pub(super) fn draw(key: &SearchKey, at: usize, seen: &[Observation], candidates: usize, random: Key) -> f64 {
    let is_better = split(seen);
    let of = |wanted: bool| -> Vec<f64> {
        let chosen = seen.iter().zip(&is_better).filter(|(_, is_better)| **is_better == wanted);
        chosen.map(|(observation, _)| observation.values[at]).collect()
    };
    let (good, other) = (Parzen::of(key, &of(true)), Parzen::of(key, &of(false)));
    let mut uniform = vec![0.0; 2 * candidates];
    random.uniform(0, &mut uniform);
    let candidate = |pair: &[f64]| {
        let value = good.sample(pair[0], pair[1]);
        (value, good.density(value) / other.density(value))
    };
    let all = uniform.chunks_exact(2).map(candidate);
    let best = all.reduce(|best, next| if next.1 > best.1 { next } else { best });
    best.map_or_else(|| key.value_at(key.coordinates().0), |(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finished_trials_come_before_stopped_ones_and_those_by_the_steps_that_they_reached() {
        let of = |cost: f64, pruned: Option<u64>| Observation { values: vec![], cost, pruned };
        let seen = [of(0.1, Some(10)), of(9.0, None), of(0.2, Some(20)), of(8.0, None), of(0.3, Some(20))];
        let mut sorted = seen.to_vec();
        sorted.sort_by(order);
        assert_eq!(sorted, [3, 1, 2, 4, 0].map(|at: usize| seen[at].clone()));
        assert_eq!(split(&seen), [false, false, false, true, false]);
        for (count, expected) in [(0, 0), (1, 1), (10, 1), (11, 2), (100, 10), (1000, 25)] {
            assert_eq!(better(count), expected, "{count}");
        }
    }
}
