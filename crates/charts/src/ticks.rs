//! Round numbers along an axis, and their labels.

use super::scale::{Scale, drawable};

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `value`; 1 if `value` is not positive.
fn round_step(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= value)
        .unwrap_or(value)
}

/// The count up to which finer ticks are tried if a range has none.
const MOST: usize = 12;

/// Returns about `count` multiples of 1, 2 or 5 times a power of ten in `low..=high`, at least one apart if `whole`.
pub fn ticks(low: f64, high: f64, count: usize, whole: bool) -> Vec<f64> {
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return drawable(low).into_iter().collect();
    }
    // A range between two whole numbers has none.
    let whole = whole && low.ceil() <= high;
    let step = round_step(span / count.max(1) as f64 * 0.999).max(if whole { 1.0 } else { 0.0 });
    // Include a tick that rounding has moved past an end.
    let first = (low / step - 1e-9).ceil();
    let found: Vec<f64> = (0..=2 * count.max(1))
        .map(|at| (first + at as f64) * step)
        .take_while(|tick| *tick <= high + 1e-9 * span)
        // Rounding may give -0 or 0.30000000000000004.
        .map(|tick| if tick.abs() < step * 1e-9 { 0.0 } else { tick })
        .collect();
    // A step may be longer than the range.
    match found.is_empty() && count < MOST {
        true => ticks(low, high, count + 1, whole),
        false => found,
    }
}

/// Returns at most about `count` ticks of a logarithmic axis over the positive numbers `low..=high`: 1, 2 and 5 times
/// powers of ten, or every first, second, third … power. A range without two of them has linear ticks.
fn log_ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let inside = |tick: &f64| (low * (1.0 - 1e-9)..=high * (1.0 + 1e-9)).contains(tick);
    // Powers of ten by their text are exact.
    let power = |exponent: i32| format!("1e{exponent}").parse::<f64>().unwrap_or(f64::NAN);
    let of = |every: usize, factors: &[f64]| -> Vec<f64> {
        let powers = (first..=last).filter(|exponent| exponent.rem_euclid(every as i32) == 0);
        powers.flat_map(|exponent| factors.iter().map(move |f| f * power(exponent))).filter(inside).collect()
    };
    let fine = of(1, &[1.0, 2.0, 5.0]);
    if fine.len() <= count.max(2) {
        return if fine.len() < 2 { ticks(low, high, count, false) } else { fine };
    }
    let mut every = 1;
    loop {
        let coarse = of(every, &[1.0]);
        if coarse.len() <= count.max(1) {
            return if coarse.is_empty() { fine[..1].to_vec() } else { coarse };
        }
        every += 1;
    }
}

impl Scale {
    /// Returns about `count` round numbers of the scale, in multiples of `factor`.
    pub(crate) fn ticks(&self, count: usize, factor: f64, whole: bool) -> Vec<f64> {
        let (low, high) = (self.low / factor, self.high / factor);
        match self.logarithmic {
            true => log_ticks(low, high, count),
            false => ticks(low, high, count, whole),
        }
    }

    /// Returns the labels of ticks: on a linear axis with one factor and as many decimals as their distance needs.
    pub(crate) fn labels(&self, ticks: &[f64]) -> Vec<String> {
        match self.logarithmic {
            true => ticks.iter().flat_map(|tick| labels(&[*tick])).collect(),
            false => labels(ticks),
        }
    }
}

/// The suffixes of large numbers, each from its first number on.
const SUFFIXES: [(f64, f64, &str); 3] = [(1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k")];

/// Returns the labels of the ticks of a linear axis: with the same suffix, or as powers of ten if they are very large or
/// very small. Zeros at the end of a fraction are left out.
pub fn labels(ticks: &[f64]) -> Vec<String> {
    let largest = ticks.iter().fold(0.0, |largest: f64, tick| largest.max(tick.abs()));
    let distances = ticks.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    let step = distances.fold(f64::INFINITY, f64::min);
    // The label of a single number has four digits.
    let step = if step.is_finite() && step > 0.0 { step } else { largest * 1e-3 };
    let decimals = |step: f64| (-(step * (1.0 + 1e-9)).log10().floor()).clamp(0.0, 12.0) as usize;
    if largest == 0.0 {
        return vec!["0".to_owned(); ticks.len()];
    }
    if !(1e-3..1e12).contains(&largest) {
        let of = |tick: &f64| match *tick {
            0.0 => "0".to_owned(),
            tick => {
                let digits = decimals(step / 10_f64.powf(tick.abs().log10().floor()));
                trimmed(&format!("{tick:.digits$e}"))
            }
        };
        return ticks.iter().map(of).collect();
    }
    let found = SUFFIXES.iter().find(|(first, ..)| largest >= *first);
    let (factor, suffix) = found.map_or((1.0, ""), |(_, factor, suffix)| (*factor, *suffix));
    let digits = decimals(step / factor);
    let of = |tick: &f64| match *tick {
        0.0 => "0".to_owned(),
        tick => format!("{}{suffix}", trimmed(&format!("{:.digits$}", tick / factor))),
    };
    ticks.iter().map(of).collect()
}

/// Removes zeros at the end of a fraction.
fn trimmed(text: &str) -> String {
    let (number, exponent) =
        text.split_once('e').map_or((text, None), |(number, power)| (number, Some(power)));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    exponent.map_or_else(|| number.to_owned(), |exponent| format!("{number}e{exponent}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn labelled(low: f64, high: f64, count: usize) -> String {
        labels(&ticks(low, high, count, false)).join(" ")
    }

    #[test]
    fn ticks_are_round_and_their_labels_short() {
        assert_eq!(labelled(0.0, 1.0, 5), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(labelled(-0.31, 0.3, 5), "-0.2 0 0.2");
        assert_eq!(labelled(0.0, 60_000.0, 5), "0 20k 40k 60k");
        assert_eq!(labelled(0.0, 10_000.0, 2), "0 5k 10k");
        assert_eq!(labelled(1.5e-5, 3.5e-5, 5), "1.5e-5 2e-5 2.5e-5 3e-5 3.5e-5");
        assert_eq!(labelled(1e6, 1e6 + 4.0, 4), "1M 1.000001M 1.000002M 1.000003M 1.000004M");
        assert_eq!(labelled(7.0, 7.0, 5), "7");
        assert_eq!(labelled(0.0, f64::INFINITY, 5), "0");
        assert_eq!(labels(&ticks(1.0, 3.0, 8, true)).join(" "), "1 2 3");
        for (value, step) in [(0.0, 1.0), (3.0, 5.0), (0.11, 0.2), (100.0, 100.0), (160.0, 200.0)] {
            assert!((round_step(value) - step).abs() < 1e-9 * step, "{value}: {}", round_step(value));
        }
    }

    #[test]
    fn logarithmic_ticks_are_powers_or_parts_of_them() {
        let told = |low, high, count| {
            let scale = Scale::logarithmic((low, high), 0.0, 1.0);
            scale.labels(&scale.ticks(count, 1.0, false)).join(" ")
        };
        assert_eq!(told(0.03, 0.9, 6), "0.05 0.1 0.2 0.5");
        assert_eq!(told(1e-5, 2e-2, 6), "1e-5 1e-4 0.001 0.01");
        assert_eq!(told(1.0, 1e12, 5), "1 1000 1M 1G 1e12");
        assert_eq!(told(2.1, 4.5, 5), "2.5 3 3.5 4 4.5", "too short for powers");
    }

    proptest! {
        #[test]
        fn ticks_are_inside_apart_and_differ_in_their_labels(low in -1e6..1e6, span in 1e-4..1e7, count in 1_usize..12) {
            let high = low + span;
            let all = ticks(low, high, count, false);
            prop_assert!(all.len() <= count + 2, "{all:?}");
            for pair in all.windows(2) {
                let step = pair[1] - pair[0];
                let mantissa = step / 10_f64.powf((step * (1.0 + 1e-6)).log10().floor());
                prop_assert!([1.0, 2.0, 5.0].iter().any(|round| (mantissa / round - 1.0).abs() < 1e-3), "{step}");
            }
            prop_assert!(all.iter().all(|tick| (low - 1e-6 * span..=high + 1e-6 * span).contains(tick)), "{all:?}");
            let names: BTreeSet<String> = labels(&all).into_iter().collect();
            prop_assert_eq!(names.len(), all.len(), "{:?}", labels(&all));
        }

        #[test]
        fn logarithmic_ticks_are_inside_and_few(low in 1e-12..1e6, ratio in 1.01..1e9, count in 2_usize..10) {
            let all = log_ticks(low, low * ratio, count);
            prop_assert!(!all.is_empty() && all.len() <= count + 2, "{all:?}");
            prop_assert!(all.iter().all(|tick| (low * 0.999..=low * ratio * 1.001).contains(tick)), "{all:?}");
            prop_assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        }
    }
}
