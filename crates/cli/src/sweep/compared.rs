//! Comparisons in the tables of sweeps: with other rows, other columns, and published numbers.

use std::collections::BTreeMap;

use serde::Deserialize;

/// A column that compares a number with a number of another row, another column, or both.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Relative {
    /// The name of the column.
    pub name: String,
    /// The number that is compared.
    pub of: String,
    /// The number that it is compared with; by default the same number.
    #[serde(default)]
    pub against: Option<String>,
    /// The choices of the reference row, by axis title. On other axes the reference row has the choices of the row
    /// itself.
    #[serde(default)]
    pub to: BTreeMap<String, toml::Value>,
    /// A number by which both are divided first, such as `ranks`.
    #[serde(default)]
    pub per: Option<String>,
    /// The kind of comparison.
    #[serde(default, rename = "as")]
    pub how: Comparison,
}

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Comparison {
    /// The number over the other: a speed-up of speeds.
    #[default]
    Ratio,
    /// The other over the number: a speed-up of times.
    Inverse,
    /// The ratio less 1: the relative change.
    Change,
    /// The inverse less 1: the relative overhead of a speed.
    Overhead,
}

/// Published numbers, which tables show next to the measured ones.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedNumbers {
    /// The choices of the matching rows. Rows must have all of them.
    pub of: BTreeMap<String, toml::Value>,
    /// The numbers, by column.
    pub numbers: BTreeMap<String, f64>,
    /// The source and the hardware of the numbers.
    #[serde(default)]
    pub source: String,
}

/// Returns the name of a value in tables and folders.
pub(super) fn choice_name(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Returns true if a row has all `wanted` choices.
pub(super) fn matches(wanted: &BTreeMap<String, toml::Value>, axes: &[String], row: &[String]) -> bool {
    wanted.iter().all(|(axis, wanted)| {
        let own = axes.iter().position(|name| name == axis).and_then(|at| row.get(at));
        own == Some(&choice_name(wanted))
    })
}

/// Rejects choices of unknown axes and unknown choices. Sampled axes accept any value.
pub(super) fn known(
    wanted: &BTreeMap<String, toml::Value>,
    axes: &[(String, Vec<String>)],
) -> Result<(), String> {
    for (axis, choice) in wanted {
        let Some((_, choices)) = axes.iter().find(|(title, _)| title == axis) else {
            let titles: Vec<&str> = axes.iter().map(|(title, _)| title.as_str()).collect();
            return Err(format!("there is no axis `{axis}`; the axes: {}", titles.join(", ")));
        };
        let choice = choice_name(choice);
        if !choices.contains(&choice) {
            return Err(format!("axis {axis} has no `{choice}`, but {}", choices.join(", ")));
        }
    }
    Ok(())
}

/// Returns true if `other` is the reference row of `row`: it has the choices `to`, and those of `row` on other axes.
pub(super) fn is_base(
    to: &BTreeMap<String, toml::Value>,
    axes: &[String],
    row: &[String],
    other: &[String],
) -> bool {
    let alike = |(axis, (own, other)): (&String, (&String, &String))| {
        to.get(axis).map_or(own == other, |wanted| *other == choice_name(wanted))
    };
    axes.iter().zip(row.iter().zip(other)).all(alike)
}

impl Relative {
    /// Refuses one that compares a number with itself or with a row that a table of these axes (titles and choices) cannot have,
    /// and one that is not shown.
    pub(super) fn check(&self, axes: &[(String, Vec<String>)], columns: &[String]) -> Result<(), String> {
        if !columns.contains(&self.name) {
            return Err(format!(
                "[[relative]] {} is not among the columns: {}",
                self.name,
                columns.join(", ")
            ));
        }
        if self.to.is_empty() && self.against.as_ref().is_none_or(|against| *against == self.of) {
            let problem = "needs a row to compare with (`to`), or another number (`against`)";
            return Err(format!("[[relative]] {} {problem}", self.name));
        }
        known(&self.to, axes).map_err(|problem| format!("[[relative]] {}: {problem}", self.name))
    }

    /// Returns true if `row` is compared with `other`, in a table of these axes.
    pub(super) fn compares(&self, axes: &[String], row: &[String], other: &[String]) -> bool {
        is_base(&self.to, axes, row, other)
    }

    /// The comparison of a run's numbers with those of another; nothing if one is missing or no number comes of it.
    pub fn value(&self, own: &BTreeMap<String, f64>, other: &BTreeMap<String, f64>) -> Option<f64> {
        let each = |numbers: &BTreeMap<String, f64>, name: &str| -> Option<f64> {
            let per = self.per.as_ref().map_or(Some(1.0), |per| numbers.get(per).copied())?;
            Some(numbers.get(name)? / per)
        };
        let (own, other) = (each(own, &self.of)?, each(other, self.against.as_ref().unwrap_or(&self.of))?);
        let value = match self.how {
            Comparison::Ratio => own / other,
            Comparison::Inverse => other / own,
            Comparison::Change => own / other - 1.0,
            Comparison::Overhead => other / own - 1.0,
        };
        value.is_finite().then_some(value)
    }

    /// Returns the meaning of the column in words.
    pub fn meaning(&self) -> String {
        let words = |name: &str| name.replace('_', " ");
        let own = words(&self.of);
        let mut other = words(self.against.as_ref().unwrap_or(&self.of));
        if !self.to.is_empty() {
            let choices = self.to.iter().map(|(axis, choice)| format!("{axis} {}", choice_name(choice)));
            other.push_str(&format!(" of the row of {}", choices.collect::<Vec<_>>().join(", ")));
        }
        let per = self.per.as_ref().map_or_else(String::new, |per| format!(", each over its {}", words(per)));
        match self.how {
            Comparison::Ratio => format!("{own} over {other}{per}"),
            Comparison::Inverse => format!("{other} over {own}{per}"),
            Comparison::Change => format!("{own} over {other}{per}, less 1"),
            Comparison::Overhead => format!("{other} over {own}{per}, less 1"),
        }
    }
}

impl PublishedNumbers {
    /// Refuses numbers of columns that a table does not have, and of rows that one of these axes (titles and choices) cannot have.
    pub(super) fn check(&self, axes: &[(String, Vec<String>)], columns: &[String]) -> Result<(), String> {
        known(&self.of, axes).map_err(|problem| format!("[[published]]: {problem}"))?;
        match self.numbers.keys().find(|name| !columns.contains(name)) {
            Some(name) => Err(format!(
                "[[published]]: there is no column `{name}`; the columns: {}",
                columns.join(", ")
            )),
            None if self.numbers.is_empty() => Err("[[published]] has no numbers".to_owned()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relative(text: &str) -> Relative {
        toml::from_str(text).expect("sound")
    }

    fn numbers(of: &[(&str, f64)]) -> BTreeMap<String, f64> {
        of.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    #[test]
    fn comparisons_are_those_of_the_field() {
        let (one, four) = (
            numbers(&[("samples_per_second", 100.0), ("seconds", 8.0), ("ranks", 1.0)]),
            numbers(&[("samples_per_second", 320.0), ("seconds", 2.5), ("ranks", 4.0)]),
        );
        for (text, expected) in [
            ("of = \"samples_per_second\"", 3.2),
            ("of = \"samples_per_second\"\nper = \"ranks\"", 0.8),
            ("of = \"samples_per_second\"\nper = \"ranks\"\nas = \"overhead\"", 0.25),
            ("of = \"seconds\"\nas = \"inverse\"", 3.2),
            ("of = \"seconds\"\nas = \"change\"", -0.6875),
            ("of = \"seconds\"\nagainst = \"ranks\"", 2.5),
        ] {
            let found = relative(&format!("name = \"x\"\n{text}\nto = {{ ranks = 1 }}")).value(&four, &one);
            assert!((found.expect("both are known") - expected).abs() < 1e-12, "{text}: {found:?}");
        }
        let lacks = relative("name = \"x\"\nof = \"staleness\"\nto = { ranks = 1 }");
        assert_eq!(lacks.value(&four, &one), None);
        let by_nothing = relative("name = \"x\"\nof = \"seconds\"\nagainst = \"waited\"");
        assert_eq!(by_nothing.value(&one, &numbers(&[("waited", 0.0)])), None, "no number");
    }

    #[test]
    fn the_other_row_has_the_choices_that_are_named_and_else_its_own() {
        let speedup = relative("name = \"speedup\"\nof = \"seconds\"\nto = { ranks = 1 }\nas = \"inverse\"");
        let axes = ["way", "ranks"].map(ToOwned::to_owned);
        let row = |way: &str, ranks: &str| [way.to_owned(), ranks.to_owned()];
        assert!(speedup.compares(&axes, &row("ring", "4"), &row("ring", "1")));
        assert!(!speedup.compares(&axes, &row("ring", "4"), &row("tree", "1")));
        assert!(!speedup.compares(&axes, &row("ring", "4"), &row("ring", "2")));
        assert!(speedup.compares(&axes, &row("ring", "1"), &row("ring", "1")), "itself");
        assert_eq!(speedup.meaning(), "seconds of the row of ranks 1 over seconds");
    }
}
