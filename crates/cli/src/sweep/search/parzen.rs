//! Parzen estimators of one key: densities around observed values, and a prior over all values.

use super::normal::{cumulative, quantile};
use super::space::SearchKey;

/// The weights of observations, the oldest first, as in Hyperopt: the newest 25 count fully, older ones less.
fn weights(count: usize) -> impl Iterator<Item = f64> {
    const FULL: usize = 25;
    let ramp = count.saturating_sub(FULL);
    let (first, span) = (1.0 / count.max(1) as f64, ramp.saturating_sub(1).max(1) as f64);
    (0..count).map(move |at| match at < ramp {
        true => first + (1.0 - first) * at as f64 / span,
        false => 1.0,
    })
}

/// A density over the values of a key.
pub(super) enum Parzen<'a> {
    /// Truncated normal distributions.
    Normals { key: &'a SearchKey, kernels: Vec<Kernel>, bounds: (f64, f64) },
    /// The probability of each choice.
    Choices(Vec<f64>),
}

/// A truncated normal distribution of a mixture.
pub(super) struct Kernel {
    weight: f64,
    mean: f64,
    deviation: f64,
    /// The cumulative distribution of the normal distribution at both bounds.
    ends: (f64, f64),
}

impl Kernel {
    fn new(weight: f64, mean: f64, deviation: f64, bounds: (f64, f64)) -> Self {
        let at = |bound: f64| cumulative((bound - mean) / deviation);
        Self { weight, mean, deviation, ends: (at(bounds.0), at(bounds.1)) }
    }

    /// Returns the probability of coordinates below `x`, which is within the bounds.
    fn below(&self, x: f64) -> f64 {
        (cumulative((x - self.mean) / self.deviation) - self.ends.0) / (self.ends.1 - self.ends.0)
    }

    fn density(&self, x: f64) -> f64 {
        let z = (x - self.mean) / self.deviation;
        let normal = (-0.5 * z * z).exp() / (self.deviation * (2.0 * std::f64::consts::PI).sqrt());
        normal / (self.ends.1 - self.ends.0)
    }

    fn sample(&self, part: f64) -> f64 {
        self.mean + self.deviation * quantile(self.ends.0 + part * (self.ends.1 - self.ends.0))
    }
}

impl<'a> Parzen<'a> {
    /// Estimates the density of observed values, the oldest first.
    ///
    /// Numbers: a normal distribution around each value, whose deviation is the larger distance to a neighbour
    /// (Bergstra et al. 2011), at least `range / min(100, kernels + 1)`; and a prior of the whole range. Choices: each
    /// observation gives its choice the probability `(1 + p) / (1 + k p)` with `k` choices and `p = 1 / kernels`. Both
    /// as `optuna.samplers.TPESampler` with `multivariate=False`.
    pub(super) fn of(key: &'a SearchKey, values: &[f64]) -> Self {
        let all: f64 = weights(values.len()).sum::<f64>() + 1.0;
        match key.choices() {
            Some(count) => {
                let (count_f, share) = (count as f64, 1.0 / (values.len() + 1) as f64);
                let mut parts = vec![1.0 / (count_f * all); count];
                for (value, weight) in values.iter().zip(weights(values.len())) {
                    let whole = all * (1.0 + count_f * share);
                    parts.iter_mut().for_each(|part| *part += weight * share / whole);
                    if let Some(part) = parts.get_mut(*value as usize) {
                        *part += weight / whole;
                    }
                }
                Self::Choices(parts)
            }
            None => {
                let bounds = key.coordinates();
                let (low, high) = bounds;
                let means: Vec<f64> = values.iter().map(|value| key.coordinate(*value)).collect();
                let deviations = deviations(&means, bounds);
                let kernel = |((mean, deviation), weight): ((&f64, &f64), f64)| {
                    Kernel::new(weight / all, *mean, *deviation, bounds)
                };
                let observed = means.iter().zip(&deviations).zip(weights(means.len()));
                let mut kernels: Vec<Kernel> = observed.map(kernel).collect();
                kernels.push(Kernel::new(1.0 / all, f64::midpoint(low, high), high - low, bounds));
                Self::Normals { key, kernels, bounds }
            }
        }
    }

    /// Returns the value of two numbers that are uniform between 0 and 1: one chooses the kernel, the other the place.
    pub(super) fn sample(&self, kernel: f64, place: f64) -> f64 {
        match self {
            Self::Choices(parts) => chosen(parts.iter().copied(), kernel) as f64,
            Self::Normals { key, kernels, bounds } => {
                let at = chosen(kernels.iter().map(|kernel| kernel.weight), kernel);
                key.value_at(kernels[at].sample(place).clamp(bounds.0, bounds.1))
            }
        }
    }

    /// Returns the density at a value; on a grid its probability.
    pub(super) fn density(&self, value: f64) -> f64 {
        match self {
            Self::Choices(parts) => parts.get(value as usize).copied().unwrap_or_default(),
            Self::Normals { key, kernels, .. } => {
                let of = |kernel: &Kernel| match key.cell(value) {
                    Some((start, end)) => kernel.below(end) - kernel.below(start),
                    None => kernel.density(key.coordinate(value)),
                };
                kernels.iter().map(|kernel| kernel.weight * of(kernel)).sum()
            }
        }
    }
}

/// Returns the index into weights that sum to 1 at the position `part` of them.
fn chosen(weights: impl Iterator<Item = f64>, part: f64) -> usize {
    let (mut sum, mut last) = (0.0, 0);
    for (at, weight) in weights.enumerate() {
        sum += weight;
        last = at;
        if part < sum {
            break;
        }
    }
    last
}

/// Returns the deviation of the kernel of each mean.
fn deviations(means: &[f64], (low, high): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..means.len()).collect();
    order.sort_by(|a, b| means[*a].total_cmp(&means[*b]));
    let mut deviations = vec![0.0; means.len()];
    let least = (high - low) / (means.len() as f64 + 2.0).min(100.0);
    for (at, index) in order.iter().enumerate() {
        let left = at.checked_sub(1).map(|at| means[order[at]]);
        let right = order.get(at + 1).map(|index| means[*index]);
        let mean = means[*index];
        let distance = match (left, right) {
            // A bound is a neighbour only of a lone value.
            (None, None) => (mean - low).max(high - mean),
            (left, right) => {
                let left = left.map_or(0.0, |left| mean - left);
                left.max(right.map_or(0.0, |right| right - mean))
            }
        };
        deviations[*index] = distance.clamp(least, high - low);
    }
    deviations
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::search::space::parsed_key as key;

    /// Logarithms of densities that Optuna 5.0.0 computes for the same observations:
    /// `_ParzenEstimator({"x": values}, {"x": distribution}, parameters).log_pdf({"x": [value]})`.
    #[test]
    fn densities_equal_those_of_optuna() {
        let many: Vec<f64> = (0..40).map(|at| f64::from(7 * at % 40) + 0.5).collect();
        for (text, observed, value, expected) in [
            ("{ from = 0.0, to = 4.0 }", &[][..], 1.0, -1.376_566_560_628_941),
            ("{ from = 0.0, to = 4.0 }", &[3.5], 1.0, -1.439_125_186_816_446),
            ("{ from = 0.0, to = 4.0 }", &[1.0, 0.5, 3.0], 0.9, -1.083_755_499_367_697_4),
            ("{ from = 0.0, to = 40.0 }", &many, 12.25, -3.543_874_949_505_713_4),
            ("{ from = 1e-4, to = 1e-1, log = true }", &[1e-3, 2e-3, 5e-2], 1.5e-3, -1.692_060_959_071_48),
            ("{ from = 0.0, to = 0.5, step = 0.25 }", &[0.25, 0.5], 0.25, -0.967_219_313_290_374_5),
            ("{ from = 8, to = 30, step = 8 }", &[8.0, 16.0], 24.0, -1.463_026_523_433_523_4),
            (
                "{ from = 1, to = 100, int = true, log = true }",
                &[1.0, 50.0, 7.0],
                7.0,
                -3.509_637_813_948_806_7,
            ),
            ("[\"a\", \"b\", \"c\"]", &[0.0, 0.0, 2.0], 0.0, -0.741_937_344_729_377_3),
            ("[\"a\", \"b\", \"c\"]", &[0.0, 0.0, 2.0], 1.0, -1.658_228_076_603_532_4),
        ] {
            let key = key(text);
            let density = Parzen::of(&key, observed).density(value).ln();
            assert!((density - expected).abs() < 1e-9, "{text}, {observed:?}, {value}: {density}");
        }
    }

    #[test]
    fn samples_follow_the_density() {
        for text in [
            "{ from = 0.0, to = 4.0 }",
            "{ from = 0, to = 4, int = true }",
            "{ from = 1, to = 5, int = true, log = true }",
            "[10, 20, 30, 40, 50]",
        ] {
            let key = key(text);
            let parzen = Parzen::of(&key, &[1.0, 1.0, 3.0]);
            let mut counts = [0_u32; 5];
            let first = key.value_at(key.coordinates().0);
            for kernel in 0..200 {
                for place in 0..50 {
                    let value =
                        parzen.sample((f64::from(kernel) + 0.5) / 200.0, (f64::from(place) + 0.5) / 50.0);
                    assert!(parzen.density(value) > 0.0);
                    counts[(value - first).round() as usize] += 1;
                }
            }
            if key.cell(1.0).is_some() || key.choices().is_some() {
                let total: f64 = (0..5).map(|at| parzen.density(first + f64::from(at))).sum();
                assert!((total - 1.0).abs() < 1e-12, "{text}: {total}");
                for (at, count) in counts.iter().enumerate() {
                    let expected = 1e4 * parzen.density(first + at as f64);
                    assert!(
                        (f64::from(*count) - expected).abs() < 250.0,
                        "{text}, {at}: {count}, {expected}"
                    );
                }
            }
        }
    }
}
