//! The file that says what a sweep varies.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::compared::{PublishedNumbers, Relative, choice_name};
use super::search::{Best, Goal, Search};
use phalanx_config::nearest;

/// A sweep, as its file describes it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepFile {
    /// The question, in a sentence.
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
    /// Columns that compare, in all parts; shown where `columns` names them.
    #[serde(default)]
    pub relative: Vec<Relative>,
    /// Numbers that others have published, in all parts.
    #[serde(default)]
    pub published: Vec<PublishedNumbers>,
    /// Choices of the row whose run, of one rank, tells how long ranks compute, for `predicted_step_ms`.
    #[serde(default)]
    pub predict: BTreeMap<String, toml::Value>,
    /// The axes of all parts.
    #[serde(default, rename = "axis")]
    pub axes: Vec<Axis>,
    /// The keys whose values are searched, for each combination of the axes.
    #[serde(default)]
    pub search: Option<Search>,
    /// The measure by which the best row is marked, without a search.
    #[serde(default)]
    pub best: Option<Best>,
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
    /// The subject of its comparison.
    pub title: String,
    /// The preset, or file, that its runs extend instead of the file's.
    #[serde(default)]
    pub extends: Option<String>,
    /// Further assignments of its runs.
    #[serde(default)]
    pub set: Vec<String>,
    /// Columns instead of the file's.
    #[serde(default)]
    pub columns: Vec<String>,
    /// True if `--quick` skips it.
    #[serde(default)]
    pub slow: bool,
    /// Columns that compare, in this part.
    #[serde(default)]
    pub relative: Vec<Relative>,
    /// Numbers that others have published of its rows.
    #[serde(default)]
    pub published: Vec<PublishedNumbers>,
    /// The chart in addition to the losses.
    #[serde(default)]
    pub scaling: Option<Scaling>,
    /// Choices of the row that its rows are predicted from, instead of the file's.
    #[serde(default)]
    pub predict: BTreeMap<String, toml::Value>,
    /// Its axes, in addition to those of all parts.
    #[serde(default, rename = "axis")]
    pub axes: Vec<Axis>,
}

/// A picture of how fast more ranks are.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scaling {
    /// The axis whose choices are numbers of ranks.
    pub over: String,
    /// The column of speed-ups.
    pub speedup: String,
    /// The column of those that are predicted.
    #[serde(default)]
    pub predicted: Option<String>,
    /// The column of those that communication alone would allow.
    #[serde(default)]
    pub communication: Option<String>,
}

/// Something that is varied: named choices, or a key and its values.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Axis {
    /// Its name in tables; the key, if there is one.
    #[serde(default)]
    pub name: String,
    /// The key whose `values` are taken.
    #[serde(default)]
    pub key: Option<String>,
    /// Values of the key.
    #[serde(default)]
    pub values: Vec<toml::Value>,
    /// Further values, which are not trained but only predicted.
    #[serde(default)]
    pub predicted: Vec<toml::Value>,
    /// Keys that are set to an integer multiple of the value.
    #[serde(default)]
    pub times: BTreeMap<String, i64>,
    /// Choices with names.
    #[serde(default)]
    pub choices: Vec<Choice>,
}

/// One of several ways to train.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choice {
    /// Its name in tables and folders.
    pub name: String,
    /// Its assignments `section.key=value`.
    #[serde(default)]
    pub set: Vec<String>,
    /// True if it is predicted and not trained.
    #[serde(default)]
    pub predicted: bool,
    /// True if `--quick` skips it.
    #[serde(default)]
    pub slow: bool,
}

impl Axis {
    /// A value and a key of `times` whose product is no integer of 64 bits.
    pub(super) fn too_large(&self) -> Option<(i64, &str)> {
        let values = self.values.iter().chain(&self.predicted).filter_map(toml::Value::as_integer);
        let of_value = |value: i64| {
            let beyond = |times: &i64| times.checked_mul(value).is_none();
            self.times.iter().find(|(_, times)| beyond(times)).map(|(key, _)| (value, key.as_str()))
        };
        values.into_iter().find_map(of_value)
    }

    /// Its choices; values are choices that set the key.
    pub fn all_choices(&self) -> Vec<Choice> {
        let Some(key) = &self.key else { return self.choices.clone() };
        let of = |value: &toml::Value, predicted: bool| {
            let mut set = vec![format!("{key}={value}")];
            let number = value.as_integer().unwrap_or(1);
            set.extend(
                self.times.iter().map(|(key, times)| format!("{key}={}", times.saturating_mul(number))),
            );
            Choice { name: choice_name(value), set, predicted, slow: false }
        };
        let trained = self.values.iter().map(|value| of(value, false));
        trained.chain(self.predicted.iter().map(|value| of(value, true))).collect()
    }

    /// Returns its name in tables.
    pub fn title(&self) -> &str {
        match &self.key {
            Some(key) if self.name.is_empty() => key,
            _ => &self.name,
        }
    }
}

/// The error of a sweep's file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepFileError {
    /// It is no TOML, or has keys that a sweep does not have.
    #[error("{name}: {source}")]
    Syntax {
        /// The file.
        name: String,
        /// The parser's error, with the line.
        source: Box<toml::de::Error>,
    },
    /// It says something that cannot be.
    #[error("{name}: {problem}")]
    Invalid {
        /// The file.
        name: String,
        /// The problem, and what would be right.
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

/// The columns of a table by default.
const COLUMNS: [&str; 6] = ["test_accuracy", "loss", "test_loss", "steps", "seconds", "samples_per_second"];

impl SweepFile {
    /// The axes of a part, its own first.
    pub(super) fn axes_of<'a>(&'a self, part: &'a Part) -> Vec<&'a Axis> {
        part.axes.iter().chain(&self.axes).collect()
    }

    /// The choices of the row that a part's rows are predicted from.
    pub(super) fn predict_of<'a>(&'a self, part: &'a Part) -> &'a BTreeMap<String, toml::Value> {
        if part.predict.is_empty() { &self.predict } else { &part.predict }
    }

    /// The columns of a part's table, with the measure by which rows are compared.
    pub(super) fn columns_of(&self, part: &Part) -> Vec<String> {
        let mut columns = match (&part.columns[..], &self.columns[..]) {
            ([], []) => COLUMNS.map(ToOwned::to_owned).to_vec(),
            ([], columns) | (columns, _) => columns.to_vec(),
        };
        let measure = self.objective().map(|(measure, _)| measure.to_owned());
        if let Some(measure) = measure.filter(|measure| !columns.contains(measure)) {
            columns.insert(0, measure);
        }
        columns
    }

    /// The measure by which rows are compared, and its direction.
    pub fn objective(&self) -> Option<(&str, Goal)> {
        let best = || self.best.as_ref().and_then(|best| Some((best.measure.as_str(), best.goal()?)));
        self.search.as_ref().and_then(Search::objective).or_else(best)
    }

    /// The parts; without any there is one, of all axes.
    pub(super) fn tables(&self) -> Vec<Part> {
        match &self.parts[..] {
            [] => vec![Part { title: self.about.clone(), ..Part::default() }],
            parts => parts.to_vec(),
        }
    }

    /// Has the runs extend another preset, or file.
    pub fn extend(&mut self, preset: &str) {
        preset.clone_into(&mut self.extends);
    }

    /// Puts other numbers of ranks into the axes that vary them; what was only predicted stays so if it is larger than these.
    ///
    /// # Errors
    /// If no axis does, or there is no number.
    pub fn vary_ranks(&mut self, name: &str, ranks: &[u32]) -> Result<(), SweepFileError> {
        let invalid =
            |problem: &str| SweepFileError::Invalid { name: name.to_owned(), problem: problem.to_owned() };
        let most = i64::from(*ranks.iter().max().ok_or_else(|| invalid("--ranks names no number"))?);
        let mut found = false;
        for axis in self.axes.iter_mut().chain(self.parts.iter_mut().flat_map(|part| &mut part.axes)) {
            if axis.key.as_deref() == Some("train.ranks") {
                axis.values = ranks.iter().map(|ranks| toml::Value::Integer((*ranks).into())).collect();
                axis.predicted.retain(|value| value.as_integer().is_some_and(|value| value > most));
                found = true;
            }
        }
        if found { Ok(()) } else { Err(invalid("--ranks: no axis has the key train.ranks")) }
    }

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
            ("[random]\ntrials = 3", "unknown field `random`"),
            ("[search]\ntrials = 3\nmeasure = \"loss\"\nkeys = {}", "needs trials above 0, and keys"),
            (
                "[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = {from = 0, to = 1, log = true}",
                "[search] optim.lr: from 0 to 1; it must be 0 < from < to",
            ),
            ("[search]\ntrials = 3\nkeys.\"optim.lr\" = [1]", "needs a measure for method = \"tpe\""),
            (
                "[search]\ntrials = 3\nmeasure = \"sharpness\"\nkeys.\"optim.lr\" = [1]",
                "does not know if `sharpness` should rise or fall",
            ),
            (
                "[search]\ntrials = 3\nmethod = \"random\"\nkeys.\"optim.lr\" = [1]\nprune = {kind = \"median\", after = 9, every = 3}",
                "needs a measure for prune",
            ),
            (
                "[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = [1]\nprune = {kind = \"median\", after = 9}",
                "needs every",
            ),
            (
                "[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = [1]\nprune = {kind = \"halving\", after = 9, every = 3}",
                "belong to kind = \"median\"",
            ),
            (
                "seeds = [0, 1]\n[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = [1]\nprune = {kind = \"halving\", after = 9}",
                "prune needs a single seed",
            ),
            (
                "[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = [1]\n[[axis]]\nkey = \"optim.lr\"\nvalues = [1]",
                "`optim.lr` is a key of [search] and of an axis",
            ),
            (
                "best = { measure = \"loss\" }\n[search]\ntrials = 3\nmeasure = \"loss\"\nkeys.\"optim.lr\" = [1]",
                "best is for sweeps without a search",
            ),
            ("best = { measure = \"sharpness\" }", "should rise or fall"),
            ("[target]\nbelow = 1.0\nwindow = 0", "window of at least 1"),
            (
                "[[relative]]\nname = \"x\"\nof = \"loss\"",
                "x is not among the columns: test_accuracy, loss, ",
            ),
            ("columns = [\"x\"]\n[[relative]]\nname = \"x\"\nof = \"loss\"", "needs a row to compare with"),
            (
                "columns = [\"x\"]\n[[relative]]\nname = \"x\"\nof = \"loss\"\nto = {ranks = 1}",
                "no axis `ranks`",
            ),
            (
                "[[axis]]\nkey = \"train.ranks\"\nvalues = [1]\npredicted = [16]",
                "[predict] names the choices",
            ),
            (
                "[[axis]]\nkey = \"train.ranks\"\nvalues = [4611686018427387904]\ntimes = { \"train.global_batch\" = 2 }",
                "4611686018427387904 times what `train.global_batch` says is too large",
            ),
            (
                "[search]\ntrials = 9223372036854775807\nmeasure = \"loss\"\nkeys.\"optim.lr\" = {from = 0, to = 1}",
                "at most 10000",
            ),
            (
                "[[axis]]\nkey = \"optim.kind\"\nvalues = [\"sgd\"]\ntimes = { \"train.global_batch\" = 16 }",
                "its values must be integers",
            ),
            (
                "[[axis]]\nkey = \"train.ranks\"\nvalues = [1, 2]\n[[published]]\nof = {\"train.ranks\" = 4}\nnumbers = {loss = 1}",
                "has no `4`, but 1, 2",
            ),
            (
                "[[axis]]\nkey = \"train.ranks\"\nvalues = [1, 2]\n[[published]]\nof = {\"train.ranks\" = 2}\nnumbers = {speed = 1}",
                "no column `speed`; the columns: ",
            ),
        ] {
            let error = SweepFile::parse("a.toml", &format!("{head}{text}")).expect_err(text).to_string();
            assert!(error.starts_with("a.toml: ") && error.contains(words), "{text}: {error}");
        }
        let axis =
            SweepFile::parse("a.toml", &format!("{head}[[axis]]\nkey = \"optim.kind\"\nvalues = [\"sgd\"]"));
        let choices = axis.expect("sound").axes[0].all_choices();
        assert_eq!(
            choices,
            [Choice {
                name: "sgd".into(),
                set: vec!["optim.kind=\"sgd\"".into()],
                predicted: false,
                slow: false
            }]
        );
    }
}
