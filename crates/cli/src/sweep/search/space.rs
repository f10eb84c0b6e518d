//! The values of a search's keys: numbers between two bounds, or choices.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The values of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a list of choices, or { from, to } with log, int and step")]
pub enum SearchKey {
    /// One of these.
    Choices(Vec<toml::Value>),
    /// A number between two.
    Between(Between),
}

/// The numbers between two, both included.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Between {
    /// The smallest.
    pub from: Number,
    /// The largest.
    pub to: Number,
    /// True if the logarithm is searched.
    #[serde(default)]
    pub log: bool,
    /// True for integers.
    #[serde(default)]
    pub int: bool,
    /// The distance of neighbouring values, from `from` on. Integers if all three are.
    #[serde(default)]
    pub step: Option<Number>,
}

/// A number as the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// An integer.
    Int(i64),
    /// A number with a decimal point or an exponent.
    Float(f64),
}

impl Number {
    /// Returns the value.
    pub fn value(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    fn is_int(self) -> bool {
        matches!(self, Self::Int(_))
    }
}

/// The largest integer that a search can draw: all smaller ones are exact.
const LARGEST: f64 = 9_007_199_254_740_992.0;

impl Between {
    /// Returns true if its values are integers.
    pub fn is_int(&self) -> bool {
        self.int || self.step.is_some_and(Number::is_int) && self.from.is_int() && self.to.is_int()
    }

    /// Returns the distance of neighbouring values; `None` if all numbers between the bounds are possible.
    pub fn spacing(&self) -> Option<f64> {
        self.step.map(Number::value).or_else(|| self.is_int().then_some(1.0))
    }

    /// Returns the smallest and the largest value.
    pub fn bounds(&self) -> (f64, f64) {
        let (from, to) = (self.from.value(), self.to.value());
        match self.spacing() {
            // A bound that rounding has moved by less than a billionth is on the grid.
            Some(step) => (from, from + step * ((to - from) / step + 1e-9).floor()),
            None => (from, to),
        }
    }

    /// Refuses bounds that hold no values, with the remedy.
    fn check(&self) -> Result<(), String> {
        let (from, to) = (self.from.value(), self.to.value());
        if !(from < to && from.is_finite() && to.is_finite() && (!self.log || from > 0.0)) {
            let bound = if self.log { "0 < from < to" } else { "from < to" };
            return Err(format!("from {from} to {to}; it must be {bound}"));
        }
        if let Some(step) = self.step.map(Number::value)
            && !(step > 0.0 && step <= to - from)
        {
            return Err(format!("step {step}; it must be above 0 and at most to - from"));
        }
        if self.is_int() {
            let numbers = [Some(self.from), Some(self.to), self.step];
            if !numbers.into_iter().flatten().all(|number| number.is_int() && number.value().abs() <= LARGEST)
            {
                return Err("int needs integers of at most 2^53 for from, to and step".to_owned());
            }
        }
        match (self.log, self.spacing()) {
            (true, Some(step)) if !(self.is_int() && step == 1.0) => {
                Err("log and step exclude each other; leave one of them out".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Returns the nearest possible value.
    fn nearest(&self, value: f64) -> f64 {
        let (low, high) = self.bounds();
        let near = match self.spacing() {
            Some(step) => low + step * ((value - low) / step).round(),
            None if self.log => format!("{value:.2e}").parse().unwrap_or(value),
            // A thousandth of the range is near enough.
            None => {
                let decimals = (3.0 - (high - low).log10().floor()).clamp(0.0, 15.0) as usize;
                format!("{value:.decimals$}").parse().unwrap_or(value)
            }
        };
        near.clamp(low, high)
    }

    /// Returns the coordinate by which numbers are near or far: the value, or its logarithm.
    fn coordinate(&self, value: f64) -> f64 {
        if self.log { value.ln() } else { value }
    }
}

impl SearchKey {
    /// Refuses keys without values, with the remedy.
    pub(super) fn check(&self) -> Result<(), String> {
        match self {
            Self::Choices(values) if values.is_empty() => Err("nothing to choose from".to_owned()),
            Self::Choices(values) => {
                let twice = (1..values.len()).find(|at| values[..*at].contains(&values[*at]));
                twice.map_or(Ok(()), |at| Err(format!("has {} twice", values[at])))
            }
            Self::Between(between) => between.check(),
        }
    }

    /// Returns the number of choices; `None` for numbers.
    pub fn choices(&self) -> Option<usize> {
        match self {
            Self::Choices(values) => Some(values.len()),
            Self::Between(_) => None,
        }
    }

    /// Returns the bounds of the coordinates of values: half a step beyond the smallest and the largest value.
    pub(super) fn coordinates(&self) -> (f64, f64) {
        match self {
            Self::Choices(values) => (0.0, values.len() as f64),
            Self::Between(between) => {
                let (low, high) = between.bounds();
                let half = between.spacing().unwrap_or_default() / 2.0;
                (between.coordinate(low - half), between.coordinate(high + half))
            }
        }
    }

    /// Returns the coordinate of a drawn number, or of the number of a choice.
    pub(super) fn coordinate(&self, value: f64) -> f64 {
        match self {
            Self::Choices(_) => value,
            Self::Between(between) => between.coordinate(value),
        }
    }

    /// Returns the coordinates that belong to a value of a grid; `None` without a grid.
    pub(super) fn cell(&self, value: f64) -> Option<(f64, f64)> {
        let Self::Between(between) = self else { return None };
        let half = between.spacing()? / 2.0;
        Some((between.coordinate(value - half), between.coordinate(value + half)))
    }

    /// Returns the value of a coordinate: a number, or the number of a choice.
    pub(super) fn value_at(&self, coordinate: f64) -> f64 {
        match self {
            Self::Choices(values) => coordinate.floor().clamp(0.0, values.len().saturating_sub(1) as f64),
            Self::Between(between) => {
                between.nearest(if between.log { coordinate.exp() } else { coordinate })
            }
        }
    }

    /// Returns the position of a value between 0 and 1; of a choice, its number.
    pub fn position(&self, value: f64) -> f64 {
        let (low, high) = self.coordinates();
        match self {
            Self::Choices(_) => value,
            Self::Between(_) => (self.coordinate(value) - low) / (high - low),
        }
    }

    /// Returns the value as a setting of the configuration.
    pub fn setting(&self, value: f64) -> toml::Value {
        match self {
            Self::Choices(values) => {
                values.get(value as usize).cloned().unwrap_or(toml::Value::Boolean(false))
            }
            Self::Between(between) if between.is_int() => toml::Value::Integer(value as i64),
            Self::Between(_) => toml::Value::Float(value),
        }
    }

    /// Returns the value of a setting; `None` if it is not one of this key's.
    pub fn value_of(&self, setting: &toml::Value) -> Option<f64> {
        match self {
            Self::Choices(values) => values.iter().position(|value| value == setting).map(|at| at as f64),
            Self::Between(between) => {
                let value = setting.as_float().or_else(|| setting.as_integer().map(|value| value as f64))?;
                let (low, high) = between.bounds();
                (low..=high).contains(&value).then_some(value)
            }
        }
    }
}

/// The keys of a search with their values, in the order of their names.
pub type Space = BTreeMap<String, SearchKey>;

/// Parses a key of a sweep file, for tests.
#[cfg(test)]
pub(super) fn parsed_key(text: &str) -> SearchKey {
    let table: toml::Table = format!("key = {text}").parse().expect("sound");
    table["key"].clone().try_into().expect("a key")
}

#[cfg(test)]
mod tests {
    use super::parsed_key as key;
    use super::*;

    #[test]
    fn coordinates_become_settings() {
        for (text, coordinates, part, setting) in [
            ("{ from = 0, to = 1 }", (0.0, 1.0), 0.123_456, "0.123"),
            ("{ from = 0.9, to = 1.0 }", (0.9, 1.0), 0.5, "0.95"),
            ("{ from = 1e-4, to = 1e-2, log = true }", (1e-4_f64.ln(), 1e-2_f64.ln()), 0.5, "0.001"),
            ("{ from = 0.1234, to = 1.0, log = true }", (0.1234_f64.ln(), 0.0), 0.0, "0.1234"),
            ("{ from = 1, to = 4, int = true }", (0.5, 4.5), 0.99, "4"),
            ("{ from = 8, to = 30, step = 8 }", (4.0, 28.0), 0.99, "24"),
            ("{ from = 0.0, to = 0.5, step = 0.25 }", (-0.125, 0.625), 0.4, "0.25"),
            ("{ from = 1, to = 100, int = true, log = true }", (0.5_f64.ln(), 100.5_f64.ln()), 0.5, "7"),
            ("[\"sgd\", \"adamw\"]", (0.0, 2.0), 0.5, "\"adamw\""),
        ] {
            let key = key(text);
            key.check().expect(text);
            let (low, high) = key.coordinates();
            assert!((low - coordinates.0).abs() < 1e-12 && (high - coordinates.1).abs() < 1e-12, "{text}");
            let value = key.value_at(low + part * (high - low));
            assert_eq!(key.setting(value).to_string(), setting, "{text}");
            assert_eq!(key.value_of(&key.setting(value)), Some(value), "{text}");
        }
    }

    #[test]
    fn keys_without_values_are_refused() {
        for (text, words) in [
            ("[]", "nothing to choose from"),
            ("[1, 2, 1]", "has 1 twice"),
            ("{ from = 0, to = 1, log = true }", "0 < from < to"),
            ("{ from = 2, to = 1 }", "from < to"),
            ("{ from = 0, to = inf }", "from < to"),
            ("{ from = 0.5, to = 2, int = true }", "needs integers"),
            ("{ from = 1, to = 8, step = 0 }", "above 0"),
            ("{ from = 1, to = 8, step = 2, log = true }", "exclude each other"),
        ] {
            let error = key(text).check().expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
        let table: toml::Table = "key = { from = 1, two = 2 }".parse().expect("sound");
        let error = table["key"].clone().try_into::<SearchKey>().expect_err("no key").to_string();
        assert!(error.contains("list of choices, or { from, to }"), "{error}");
    }
}
