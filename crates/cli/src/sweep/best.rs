//! The best row of a table, and the commands that go on with its run.

use std::collections::BTreeSet;
use std::path::Path;

use serde::Serialize;

use super::outcome::Outcome;
use super::place::SweepFolder;
use super::table::{Outcomes, ResultTable};
use super::trials::{Run, TRIAL, Table, Trials, effective};
use phalanx_run::format;

/// A sweep after its runs.
#[derive(Debug, Clone, Copy)]
pub struct SweepView<'a> {
    /// The name of the program that trains its runs.
    pub program: &'a str,
    /// Its folder.
    pub folder: &'a Path,
    /// Its runs and tables.
    pub trials: &'a Trials,
    /// The outcomes of the runs.
    pub outcomes: &'a Outcomes,
}

/// The best row of a table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BestRow {
    /// Its number in the table.
    pub row: usize,
    /// Its choices, or the number of its trial.
    pub name: String,
    /// The measure by which it is the best.
    pub measure: String,
    /// The value of the measure, over all seeds.
    pub value: f64,
    /// The folder of its run, of the first seed.
    pub run: String,
    /// The settings by which its run differs from those of other rows.
    pub settings: Vec<String>,
    /// The command that evaluates it; missing if it has no checkpoint.
    pub evaluate: Option<String>,
    /// The command that trains it twice as long.
    pub longer: String,
}

impl BestRow {
    /// Returns the best row of a table of the sweep in `folder`; `None` if no row has a measure.
    pub fn of(table: &Table, filled: &ResultTable, sweep: SweepView<'_>) -> Option<Self> {
        let SweepView { program, folder, trials, outcomes } = sweep;
        let row = filled.best?;
        let at = *table.trials[row].runs.first()?;
        let run = &trials.runs[at];
        let place = SweepFolder(folder);
        let path = place.run(run);
        let saved = std::fs::read_dir(path.join("checkpoints")).is_ok_and(|mut files| files.next().is_some());
        let path = path.display().to_string();
        let steps = outcomes[at].as_ref().and_then(|outcome| outcome.as_ref().ok()).and_then(steps_of);
        let steps = steps.map_or_else(|| "STEPS".to_owned(), |steps| (2 * steps).to_string());
        let config = quoted(&place.config(run).display().to_string());
        let name = match table.axes.iter().position(|axis| axis == TRIAL) {
            Some(trial) => {
                let before = table.trials[row].choices[..trial].join(", ");
                let number = &table.trials[row].choices[trial];
                if before.is_empty() {
                    format!("trial {number}")
                } else {
                    format!("{before}, trial {number}")
                }
            }
            None => table.trials[row].choices.join(", "),
        };
        Some(Self {
            row,
            name,
            measure: table.objective.as_ref()?.measure.clone(),
            value: filled.measures(table)[row]?,
            evaluate: saved.then(|| format!("{program} eval {}", quoted(&path))),
            run: path,
            settings: settings(table, trials, run),
            longer: format!("{program} train {config} --set train.steps={steps}"),
        })
    }

    /// Its description, and the commands.
    pub fn lines(&self) -> Vec<String> {
        let Self { name, measure, value, run, .. } = self;
        let mut lines = vec![format!("best: {name}, {measure} {}, {run}", format::number(*value))];
        if !self.settings.is_empty() {
            let sets = self.settings.iter().map(|set| format!("--set {}", quoted(set)));
            lines.push(format!("its settings: {}", sets.collect::<Vec<_>>().join(" ")));
        }
        lines.extend(self.evaluate.iter().map(|command| format!("evaluate it: {command}")));
        lines.push(format!("train it longer: {}", self.longer));
        lines
    }
}

fn steps_of(outcome: &Outcome) -> Option<u64> {
    outcome.numbers.get("steps").map(|steps| *steps as u64)
}

/// Returns the assignments of a run that not all rows of the table have, without the seed.
fn settings(table: &Table, trials: &Trials, run: &Run) -> Vec<String> {
    let others: Vec<BTreeSet<_>> = table
        .trials
        .iter()
        .filter_map(|trial| trial.runs.first())
        .map(|run| effective(&trials.runs[*run].sets).into_iter().collect())
        .collect();
    let varies =
        |set: &(&str, &str)| set.0 != "train.seed" && !others.iter().all(|other| other.contains(set));
    let sets = effective(&run.sets).into_iter().filter(varies);
    sets.map(|(key, value)| format!("{key}={}", bare(value))).collect()
}

/// Returns a string without its quotes, if it is one that `--set` takes for a string without them.
fn bare(value: &str) -> &str {
    let inner = value.strip_prefix('"').and_then(|value| value.strip_suffix('"'));
    let is_plain = |inner: &&str| {
        let simple = |letter: char| letter.is_ascii_alphanumeric() || "_-./".contains(letter);
        !inner.is_empty() && inner.chars().all(simple) && inner.parse::<toml::Value>().is_err()
    };
    inner.filter(is_plain).unwrap_or(value)
}

/// Returns a word as a shell takes it.
fn quoted(word: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./=+,:@%".contains(letter);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::SweepFile;

    #[test]
    fn the_best_row_names_its_settings_and_commands() {
        let file = "about = \"x\"\nextends = \"tiny\"\nset = [\"train.steps=10\"]\nseeds = [0, 1]\nbest = { measure = \"test_accuracy\" }\n\
                    [[axis]]\nkey = \"optim.kind\"\nvalues = [\"sgd\", \"adamw\"]\n[[axis]]\nname = \"data\"\n\
                    choices = [{ name = \"a\" }, { name = \"b c\", set = ['data.path=\"b c\"', \"train.steps=12\"] }]\n";
        let file = SweepFile::parse("a.toml", file).expect("sound");
        let trials = Trials::of(&file, &[], false);
        let outcome = |(at, value): (usize, f64)| {
            let numbers =
                [("test_accuracy".to_owned(), value), ("steps".to_owned(), 10.0 + at as f64)].into();
            Some(Ok(Outcome { numbers, ..Outcome::default() }))
        };
        let mut outcomes: Vec<_> =
            [0.5, 0.6, 0.7, 0.7, 0.9, 0.2, 0.8, 0.8].into_iter().enumerate().map(outcome).collect();
        let of = |outcomes: &Outcomes| {
            let table = &trials.tables[0];
            let filled = ResultTable::of(table, outcomes);
            let (program, folder, trials) = ("phalanx", Path::new("runs/x"), &trials);
            BestRow::of(table, &filled, SweepView { program, folder, trials, outcomes })
        };
        let best = of(&outcomes).expect("a best row");
        assert_eq!(
            best.lines(),
            [
                "best: adamw, b c, test_accuracy 0.8000, runs/x/runs/adamw_b-c_seed0",
                "its settings: --set 'data.path=\"b c\"' --set optim.kind=adamw --set train.steps=12",
                "train it longer: phalanx train runs/x/configs/adamw_b-c_seed0.toml --set train.steps=32",
            ]
        );
        // A row counts once all of its seeds are finished.
        outcomes[7] = None;
        assert_eq!(of(&outcomes).map(|best| best.row), Some(1));
        assert_eq!(of(&vec![None; 8]), None);
    }

    #[test]
    fn strings_keep_their_quotes_if_they_are_needed() {
        let words = ["\"sgd\"", "\"1\"", "\"true\"", "\"\"", "[1, 2]", "\"b c\""];
        assert_eq!(words.map(bare), ["sgd", "\"1\"", "\"true\"", "\"\"", "[1, 2]", "\"b c\""]);
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
