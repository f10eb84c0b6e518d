//! The draw of a trial's settings.

use phalanx_tensor::Key;

use super::file::{Method, Search};
use super::space::SearchKey;
use super::tpe::{self, Observation};

/// Draws trial number `trial`: a value for each key, in the order of the names; of a choice, its number.
///
/// The draw is a function of the search, the number of the trial, and the observations of earlier trials, the oldest
/// first. It is random, without the observations, under [`Method::Random`] and while there are fewer than
/// [`Search::startup`] of them.
pub fn draw(search: &Search, trial: usize, seen: &[Observation]) -> Vec<f64> {
    let all = Key::new(search.seed).stream("sweep");
    let is_random = search.method == Method::Random || seen.is_empty() || seen.len() < search.startup;
    let of_key = |(at, (name, values)): (usize, (&String, &SearchKey))| {
        let random = all.stream(name).step(trial as u64);
        if !is_random {
            return tpe::draw(values, at, seen, search.candidates, random.stream("tpe"));
        }
        let mut part = [0.0];
        random.uniform(0, &mut part);
        let (low, high) = values.coordinates();
        values.value_at(low + part[0] * (high - low))
    };
    search.keys.iter().enumerate().map(of_key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: &str = "[keys]\n\"optim.lr\" = { from = 1e-5, to = 1.0, log = true }\n\
                        depth = { from = 1, to = 16, int = true }\ndrop = { from = 0.0, to = 0.9 }\n\
                        kind = [\"a\", \"b\", \"c\", \"d\"]\n";

    fn search(method: &str, seed: u64) -> Search {
        let text = format!("method = \"{method}\"\ntrials = 60\nseed = {seed}\nmeasure = \"loss\"\n{KEYS}");
        toml::from_str(&text).expect("sound")
    }

    /// A valley in the logarithm of the rate, in a number and an integer, in which one choice is far better.
    fn valley(values: &[f64]) -> f64 {
        let [depth, drop, kind, rate] = values else { panic!("{values:?}") };
        let kind = [0.5, 0.0, 1.0, 0.7][*kind as usize];
        (rate.log10() + 2.3).powi(2) + ((depth - 5.0) / 4.0).powi(2) + 4.0 * (drop - 0.3).powi(2) + kind
    }

    /// Rosenbrock's function of two of the keys, whose best values depend on each other.
    fn rosenbrock(values: &[f64]) -> f64 {
        let (x, y) = (values[3].log10() / 2.5 + 1.0, 4.0 * values[1] - 1.5);
        (1.0 - x).powi(2) + 10.0 * (y - x * x).powi(2)
    }

    /// Returns the draws of a search, and the smallest cost up to each.
    fn searched(search: &Search, cost: impl Fn(&[f64]) -> f64, lag: usize) -> (Vec<Vec<f64>>, f64) {
        let (mut drawn, mut seen): (Vec<Vec<f64>>, Vec<Observation>) = (Vec::new(), Vec::new());
        for trial in 0..search.trials {
            let known = (trial + 1).saturating_sub(lag);
            let values = draw(search, trial, &seen[..known.min(seen.len())]);
            seen.push(Observation { values: values.clone(), cost: cost(&values), pruned: None });
            drawn.push(values);
        }
        let best = seen.iter().map(|observation| observation.cost).fold(f64::INFINITY, f64::min);
        (drawn, best)
    }

    #[test]
    fn tpe_finds_better_values_than_random_draws() {
        for (name, cost, wins) in
            [("valley", valley as fn(&[f64]) -> f64, 18), ("rosenbrock", rosenbrock as fn(&[f64]) -> f64, 18)]
        {
            let (mut better, mut sums) = (0, [0.0; 2]);
            for seed in 0..24 {
                let [random, tpe] =
                    ["random", "tpe"].map(|method| searched(&search(method, seed), cost, 1).1);
                better += u32::from(tpe < random);
                sums = [sums[0] + random, sums[1] + tpe];
            }
            assert!(better >= wins, "{name}: better with {better} of 24 seeds");
            assert!(
                sums[1] < 0.7 * sums[0],
                "{name}: {} by TPE, {} at random",
                sums[1] / 24.0,
                sums[0] / 24.0
            );
        }
    }

    #[test]
    fn draws_repeat_and_depend_on_what_was_seen() {
        let tpe = search("tpe", 3);
        let (first, _) = searched(&tpe, valley, 1);
        assert_eq!(first, searched(&tpe, valley, 1).0);
        let (behind, _) = searched(&tpe, valley, 4);
        assert_eq!(behind, searched(&tpe, valley, 4).0);
        // Ten observations are needed, which are known after 10 trials, or with 4 at once after 13.
        let (random, _) = searched(&search("random", 3), valley, 1);
        assert_eq!((&first[..10], &behind[..13]), (&random[..10], &random[..13]));
        assert!(first[10] != random[10] && behind[13] != random[13] && first[13] != behind[13]);
        assert_ne!(searched(&search("tpe", 4), valley, 1).0[0], first[0]);
        for values in &first {
            for (value, (name, key)) in values.iter().zip(&tpe.keys) {
                assert_eq!(key.value_of(&key.setting(*value)), Some(*value), "{name}");
            }
        }
    }

    #[test]
    fn random_draws_are_uniform() {
        let search = Search { trials: 400, ..search("random", 7) };
        let (drawn, _) = searched(&search, valley, 1);
        let share = |holds: &dyn Fn(&[f64]) -> bool| {
            drawn.iter().filter(|values| holds(values)).count() as f64 / drawn.len() as f64
        };
        assert!((share(&|values| values[3] < 10_f64.powf(-2.5)) - 0.5).abs() < 0.08);
        assert!((share(&|values| values[1] < 0.3) - 1.0 / 3.0).abs() < 0.08);
        assert!((share(&|values| values[0] == 16.0) - 1.0 / 16.0).abs() < 0.04);
        assert!((share(&|values| values[2] == 3.0) - 0.25).abs() < 0.08);
    }
}
