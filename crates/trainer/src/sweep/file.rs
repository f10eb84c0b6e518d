//! The file that says what a sweep varies.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::config::nearest;

/// What a sweep trains, as its file says.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// What is asked, in a sentence.
    pub about: String,
    /// The preset, or file, that all runs extend.
    pub extends: String,
    /// Assignments `section.key=value` of all runs.
    #[serde(default)]
    pub set: Vec<String>,
    /// Further assignments of all runs under `--quick`.
    #[serde(default)]
    pub quick: Vec<String>,
    /// Values of `train.seed`: each configuration is trained once for each.
    #[serde(default = "one_seed")]
    pub seeds: Vec<u64>,
    /// The loss that runs are asked to reach.
    #[serde(default)]
    pub target: Option<Target>,
    /// Numbers of a run that tables show, in order.
    #[serde(default)]
    pub columns: Vec<String>,
    /// What is varied in all parts.
    #[serde(default, rename = "axis")]
    pub axes: Vec<Axis>,
    /// What is drawn.
    #[serde(default)]
    pub random: Option<Random>,
    /// Tables; without any there is one, of all axes.
    #[serde(default, rename = "part")]
    pub parts: Vec<Part>,
}

fn one_seed() -> Vec<u64> {
    vec![0]
}

/// A loss to be reached.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The training loss, as in `metrics.jsonl`.
    #[serde(default = "loss")]
    pub loss: String,
    /// Reached when the mean over the last `window` steps is not above it.
    pub below: f64,
    /// Steps whose mean is taken.
    #[serde(default = "ten")]
    pub window: usize,
}

fn loss() -> String {
    "loss".to_owned()
}

fn ten() -> usize {
    10
}

/// A table, with its picture.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// What it compares.
    pub title: String,
    /// Further assignments of its runs.
    #[serde(default)]
    pub set: Vec<String>,
    /// Columns instead of the file's.
    #[serde(default)]
    pub columns: Vec<String>,
    /// Whether `--quick` leaves it out.
    #[serde(default)]
    pub slow: bool,
    /// What is varied in it, besides what the file varies in all parts.
    #[serde(default, rename = "axis")]
    pub axes: Vec<Axis>,
}

/// Something that is varied: named choices, or a key and its values.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// What tables call it; the key, if there is one.
    #[serde(default)]
    pub name: String,
    /// The key whose `values` are taken.
    #[serde(default)]
    pub key: Option<String>,
    /// Values of the key.
    #[serde(default)]
    pub values: Vec<toml::Value>,
    /// Choices with names.
    #[serde(default)]
    pub choices: Vec<Choice>,
}

/// One of several ways to train.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// What tables and folders call it.
    pub name: String,
    /// Its assignments `section.key=value`.
    #[serde(default)]
    pub set: Vec<String>,
}

impl Axis {
    /// Its choices; values are choices that set the key.
    pub fn all_choices(&self) -> Vec<Choice> {
        let Some(key) = &self.key else { return self.choices.clone() };
        let of = |value: &toml::Value| {
            let name = value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned);
            Choice { name, set: vec![format!("{key}={value}")] }
        };
        self.values.iter().map(of).collect()
    }

    /// What tables call it.
    pub fn title(&self) -> &str {
        match &self.key {
            Some(key) if self.name.is_empty() => key,
            _ => &self.name,
        }
    }
}

/// Keys whose values are drawn, the same draws for every configuration of the axes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Random {
    /// How many draws.
    pub trials: usize,
    /// What the draws follow from.
    #[serde(default)]
    pub seed: u64,
    /// By key, what is drawn from.
    pub keys: BTreeMap<String, Range>,
}

/// What values are drawn from, evenly.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Range {
    /// One of these.
    Choices(Vec<toml::Value>),
    /// Numbers between two.
    Between {
        /// The smallest.
        from: f64,
        /// The largest.
        to: f64,
        /// Whether their logarithms are even.
        #[serde(default)]
        log: bool,
    },
}

/// What is wrong with the file of a sweep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepFileError {
    /// It is no TOML, or has keys that a sweep does not have.
    #[error("{name}: {source}")]
    Syntax {
        /// The file.
        name: String,
        /// What the parser says, with the line.
        source: Box<toml::de::Error>,
    },
    /// It says something that cannot be.
    #[error("{name}: {problem}")]
    Invalid {
        /// The file.
        name: String,
        /// What is wrong, and what would be right.
        problem: String,
    },
    /// There is no study of this name.
    #[error("there is no study `{name}`{}; the studies: {}", suggestion.as_ref().map_or_else(String::new, |word| format!("; did you mean {word}?")), known.join(", "))]
    NoSuchStudy {
        /// The name.
        name: String,
        /// The nearest one.
        suggestion: Option<String>,
        /// All of them.
        known: Vec<String>,
    },
}

impl SweepFileError {
    /// There is no study `name` among `known`.
    pub fn no_such_study(name: &str, known: &[&str]) -> Self {
        let suggestion = nearest(name, known.iter().copied());
        Self::NoSuchStudy {
            name: name.to_owned(),
            suggestion,
            known: known.iter().map(|&name| name.to_owned()).collect(),
        }
    }
}

impl SweepFile {
    /// Reads the text of a file called `name`.
    ///
    /// # Errors
    /// If it is no TOML, has unknown keys, or varies nothing.
    pub fn parse(name: &str, text: &str) -> Result<Self, SweepFileError> {
        let file: Self = toml::from_str(text)
            .map_err(|source| SweepFileError::Syntax { name: name.to_owned(), source: Box::new(source) })?;
        file.check().map_err(|problem| SweepFileError::Invalid { name: name.to_owned(), problem })?;
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        for axis in self.axes.iter().chain(self.parts.iter().flat_map(|part| &part.axes)) {
            let title = axis.title();
            match &axis.key {
                None if axis.name.is_empty() => {
                    return Err("an [[axis]] needs a name with choices, or a key with values".to_owned());
                }
                None if axis.choices.is_empty() => {
                    return Err(format!("[[axis]] {title} has no choices; an axis of values needs a key"));
                }
                Some(key) if axis.values.is_empty() => {
                    return Err(format!("[[axis]] {key} has no values"));
                }
                Some(key) if !axis.choices.is_empty() => {
                    return Err(format!("[[axis]] {key} has values and choices; it is one or the other"));
                }
                _ => {}
            }
            let choices = axis.all_choices();
            let twice = (1..choices.len())
                .find(|at| choices[..*at].iter().any(|choice| choice.name == choices[*at].name));
            if let Some(at) = twice {
                return Err(format!("[[axis]] {title} has `{}` twice", choices[at].name));
            }
        }
        if self.seeds.is_empty() {
            return Err("seeds is empty; leave it out for seed 0".to_owned());
        }
        if let Some(random) = &self.random {
            if random.trials == 0 || random.keys.is_empty() {
                return Err("[random] needs trials above 0, and keys".to_owned());
            }
            for (key, range) in &random.keys {
                match range {
                    Range::Choices(values) if values.is_empty() => {
                        return Err(format!("[random] {key} has nothing to choose from"));
                    }
                    Range::Between { from, to, log } if !(from < to && (!log || *from > 0.0)) => {
                        let bound = if *log { "0 < from < to" } else { "from < to" };
                        return Err(format!("[random] {key}: from {from} to {to}; it must be {bound}"));
                    }
                    _ => {}
                }
            }
        }
        if let Some(target) = &self.target
            && (!target.below.is_finite() || target.window == 0)
        {
            return Err("[target] needs a finite loss `below`, and a window of at least 1".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_told() {
        let head = "about = \"x\"\nextends = \"tiny\"\n";
        for (text, words) in [
            ("sets = []", "unknown field `sets`"),
            ("[[axis]]\nname = \"a\"", "a has no choices"),
            ("[[axis]]\nkey = \"optim.lr\"", "optim.lr has no values"),
            ("[[axis]]\nkey = \"optim.lr\"\nvalues = [1, 2, 1]", "has `1` twice"),
            ("[[axis]]\nvalues = [1]", "needs a name"),
            ("seeds = []", "seeds is empty"),
            (
                "[random]\ntrials = 3\n[random.keys]\n\"optim.lr\" = {from = 0, to = 1, log = true}",
                "0 < from < to",
            ),
            ("[random]\ntrials = 3\n[random.keys]\n\"optim.lr\" = []", "nothing to choose"),
            ("[target]\nbelow = 1.0\nwindow = 0", "window of at least 1"),
        ] {
            let error = SweepFile::parse("a.toml", &format!("{head}{text}")).expect_err(text).to_string();
            assert!(error.starts_with("a.toml: ") && error.contains(words), "{text}: {error}");
        }
        let axis =
            SweepFile::parse("a.toml", &format!("{head}[[axis]]\nkey = \"optim.kind\"\nvalues = [\"sgd\"]"));
        let choices = axis.expect("sound").axes[0].all_choices();
        assert_eq!(choices, [Choice { name: "sgd".into(), set: vec!["optim.kind=\"sgd\"".into()] }]);
    }
}
