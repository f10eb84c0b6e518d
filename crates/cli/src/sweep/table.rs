//! Tables of a sweep: a row for each configuration, with the mean over its seeds and how far they are apart.

use std::collections::BTreeMap;

use super::energy::EnergySource;
use super::outcome::Outcome;
use super::trials::{Table, Trial};

/// The outcomes of the runs of a sweep, by index: an error for a failed run, `None` for a run that was not trained.
pub type Outcomes = [Option<Result<Outcome, String>>];

/// The mean of some numbers, and their standard deviation, if there are several.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample: of two or more.
    pub deviation: Option<f64>,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// Computes the spread of some values; `None` without values.
    pub fn of(numbers: &[f64]) -> Option<Self> {
        if numbers.is_empty() {
            return None;
        }
        let count = numbers.len() as f64;
        let mean = numbers.iter().sum::<f64>() / count;
        let squares = numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>();
        let deviation = (numbers.len() > 1).then(|| (squares / (count - 1.0)).sqrt());
        Some(Self { mean, deviation, count: numbers.len() })
    }
}

/// A table with its numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultTable {
    /// The subject of its comparison.
    pub title: String,
    /// The names of its first columns, which say what a row is.
    pub axes: Vec<String>,
    /// The names of its numbers.
    pub columns: Vec<String>,
    /// Where its published numbers come from.
    pub sources: Vec<String>,
    /// Its rows.
    pub rows: Vec<Row>,
    /// The number of the best row.
    pub best: Option<usize>,
}

/// A configuration and what it has reached.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its choices on the axes.
    pub choices: Vec<String>,
    /// Its numbers, those of a column over the seeds in which there is one.
    pub cells: Vec<Option<Spread>>,
    /// The published numbers, by column.
    pub published: BTreeMap<String, f64>,
    /// Seeds that are finished.
    pub seeds: usize,
    /// The source of its energy numbers, if its runs have any.
    pub energy: Option<EnergySource>,
    /// Why runs failed.
    pub errors: Vec<String>,
    /// The step of the decision to stop its run before the end.
    pub pruned: Option<u64>,
}

impl ResultTable {
    /// Fills a table. Columns of GPUs and of accuracies are left out where no run had one.
    pub fn of(table: &Table, outcomes: &Outcomes) -> Self {
        let rows = table.trials.iter().map(|trial| {
            let ended = || trial.runs.iter().filter_map(|run| outcomes[*run].as_ref());
            let finished: Vec<&Outcome> = ended().filter_map(|outcome| outcome.as_ref().ok()).collect();
            let finished_run = |run: &usize| outcomes[*run].as_ref()?.as_ref().ok();
            let cell = |column: &String| {
                let relative = table.relative.iter().find(|relative| relative.name == *column);
                let Some(relative) = relative else {
                    let numbers = finished.iter().filter_map(|outcome| outcome.numbers.get(column).copied());
                    return Spread::of(&numbers.collect::<Vec<_>>());
                };
                // Runs of the same seed are compared.
                let is_other =
                    |other: &&Trial| relative.compares(&table.axes, &trial.choices, &other.choices);
                let other = table.trials.iter().find(is_other)?;
                let pairs = trial.runs.iter().zip(&other.runs);
                let numbers = pairs.filter_map(|(run, other)| {
                    relative.value(&finished_run(run)?.numbers, &finished_run(other)?.numbers)
                });
                Spread::of(&numbers.collect::<Vec<_>>())
            };
            Row {
                choices: trial.choices.clone(),
                cells: table.columns.iter().map(cell).collect(),
                published: trial.published.clone(),
                seeds: finished.len(),
                energy: EnergySource::of_all(finished.iter().filter_map(|outcome| outcome.energy.clone())),
                errors: ended().filter_map(|outcome| outcome.as_ref().err().cloned()).collect(),
                pruned: finished.iter().find_map(|outcome| outcome.pruned),
            }
        });
        let mut filled = Self {
            title: table.title.clone(),
            axes: table.axes.clone(),
            columns: table.columns.clone(),
            sources: table.sources.clone(),
            rows: rows.collect(),
            best: None,
        };
        filled.best = filled.best_of(table);
        filled.leave_out_absent();
        filled
    }

    /// Returns the measure of each row of which all runs were trained to their ends.
    pub fn measures(&self, table: &Table) -> Vec<Option<f64>> {
        let measure = table.objective.as_ref().map(|objective| &objective.measure);
        let column = self.columns.iter().position(|column| Some(column) == measure);
        let of = |(row, trial): (&Row, &Trial)| {
            let is_whole = row.pruned.is_none() && row.seeds == trial.runs.len();
            let cell = row.cells[column?].filter(|cell| is_whole && cell.count == row.seeds)?;
            cell.mean.is_finite().then_some(cell.mean)
        };
        self.rows.iter().zip(&table.trials).map(of).collect()
    }

    /// Returns the row with the best measure, the first of equal ones.
    fn best_of(&self, table: &Table) -> Option<usize> {
        let goal = table.objective.as_ref()?.goal;
        let known = self.measures(table).into_iter().enumerate();
        let known = known.filter_map(|(at, measure)| Some((at, measure?)));
        known.min_by(|a, b| goal.order(a.1, b.1)).map(|(at, _)| at)
    }

    /// Leaves out columns of GPUs and of accuracies of which no row has a number.
    fn leave_out_absent(&mut self) {
        for at in (0..self.columns.len()).rev() {
            let known = self.rows.iter().any(|row| row.cells[at].is_some());
            let may_lack = self.columns[at].starts_with("gpu_") || self.columns[at] == "test_accuracy";
            if may_lack && !known {
                self.columns.remove(at);
                self.rows.iter_mut().for_each(|row| {
                    row.cells.remove(at);
                });
            }
        }
    }
}
