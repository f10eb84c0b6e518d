//! The results of a sweep: its tables in every form, their charts, and a JSON file for programs and for the report.

use serde_json::{Map, Value, json};

use super::best::{BestRow, SweepView};
use super::file::SweepFile;
use super::importance::Importance;
use super::outcome::NUMBERS;
use super::picture::curves;
use super::scaling::{Speedups, speedups, speedups_svg};
use super::table::ResultTable;
use super::trials::{TRIAL, Table};
use phalanx_run::{Machine, format, write_aside};

/// On what, and how, a sweep was measured.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Conditions {
    /// The machine.
    pub machine: Machine,
    /// True for the short form.
    pub quick: bool,
    /// The number of runs that trained at once.
    pub parallel: usize,
    /// The most ranks of any run that was trained.
    pub ranks: usize,
    /// True if runs were timed by simulated clocks.
    pub simulated: bool,
}

/// The results of a sweep.
#[derive(Debug)]
pub struct Results<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its file.
    pub file: &'a SweepFile,
    /// Its runs, tables and outcomes.
    pub sweep: SweepView<'a>,
    /// On what it was measured.
    pub conditions: &'a Conditions,
}

/// A finished table, and the findings below it.
#[derive(Debug, Clone, PartialEq)]
pub struct TableResult {
    /// The table with its numbers.
    pub table: ResultTable,
    /// Its best row.
    pub best: Option<BestRow>,
    /// The importance of its keys.
    pub importance: Option<Importance>,
}

impl TableResult {
    /// Returns the best row and the importance of keys, in lines of text.
    pub fn findings(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.best.iter().flat_map(BestRow::lines).collect();
        let importance = self.importance.as_ref().map(Importance::words).unwrap_or_default();
        lines.extend(format::columns(&importance));
        lines
    }

    /// Markdown.
    fn markdown(&self) -> String {
        let mut text = self.table.markdown();
        for (at, line) in self.best.iter().flat_map(BestRow::lines).enumerate() {
            let (what, value) = line.split_once(": ").unwrap_or((&line, ""));
            let value = if at == 0 { value.to_owned() } else { format!("`{value}`") };
            let between = if at == 0 { "\n" } else { "" };
            text.push_str(&format!("{between}- {what}: {value}\n"));
        }
        for (at, row) in self.importance.iter().flat_map(Importance::words).enumerate() {
            let line = if at == 0 { "|---|--:|\n" } else { "" };
            let between = if at == 0 { "\n" } else { "" };
            text.push_str(&format!("{between}| {} |\n{line}", row.join(" | ")));
        }
        text
    }
}

impl Results<'_> {
    /// The tables with their numbers.
    pub fn tables(&self) -> impl Iterator<Item = TableResult> {
        self.sweep.trials.tables.iter().map(|table| {
            let filled = ResultTable::of(table, self.sweep.outcomes);
            let best = BestRow::of(table, &filled, self.sweep);
            TableResult { best, importance: Importance::of(table, &filled), table: filled }
        })
    }

    /// Writes `results.md`, `results.json`, and for each table `N.md`, `N.csv`, `N.svg` and `N-speedup.svg`.
    ///
    /// # Errors
    /// If one of them cannot be written.
    pub fn write(&self) -> std::io::Result<()> {
        let folder = self.sweep.folder;
        let mut text = format!("# {}\n\n{}\n\n{}\n\n", self.name, self.file.about, self.measured());
        for (name, meaning) in self.meanings() {
            text.push_str(&format!("- *{}*: {meaning}\n", name.replace('_', " ")));
        }
        text.push('\n');
        let mut tables = Vec::new();
        for (at, (result, table)) in self.tables().zip(&self.sweep.trials.tables).enumerate() {
            let number = at + 1;
            let (markdown, filled) = (result.markdown(), &result.table);
            text.push_str(&markdown);
            write_aside(&folder.join(format!("{number}.md")), markdown.as_bytes())?;
            write_aside(&folder.join(format!("{number}.csv")), filled.csv().as_bytes())?;
            let speedups = speedups(table, filled);
            if !speedups.is_empty() {
                let svg = speedups_svg(&table.title, &speedups);
                write_aside(&folder.join(format!("{number}-speedup.svg")), svg.as_bytes())?;
                text.push_str(&format!("\n![{}: speed-up]({number}-speedup.svg)\n", filled.title));
            }
            if let Some(svg) = curves(&pictured(table), self.sweep.outcomes, self.file.target.as_ref()) {
                write_aside(&folder.join(format!("{number}.svg")), svg.as_bytes())?;
                text.push_str(&format!("\n![{}]({number}.svg)\n", filled.title));
            }
            text.push('\n');
            tables.push(self.table_json(table, &result, &speedups));
        }
        let meanings = self.meanings().into_iter().map(|(name, meaning)| (name, Value::from(meaning)));
        let target = self
            .file
            .target
            .as_ref()
            .map(|target| json!({ "loss": target.loss, "below": target.below, "window": target.window }));
        let json = json!({
            "study": self.name, "about": self.file.about, "measured": self.measured(), "quick": self.conditions.quick,
            "machine": self.conditions.machine, "meanings": Map::from_iter(meanings), "target": target, "tables": tables,
        });
        write_aside(&folder.join("results.json"), format!("{json:#}\n").as_bytes())?;
        write_aside(&folder.join("results.md"), text.as_bytes())
    }

    /// A table for programs: its numbers and findings, the folders of its rows' runs, and the lines of its speed-ups.
    fn table_json(&self, table: &Table, result: &TableResult, speedups: &[Speedups]) -> Value {
        let mut json = result.table.json();
        for (at, trial) in table.trials.iter().enumerate() {
            let runs: Vec<_> = trial.runs.iter().map(|run| &self.sweep.trials.runs[*run]).collect();
            json["rows"][at]["predicted"] = runs.iter().any(|run| run.predicted).into();
            json["rows"][at]["runs"] = runs.iter().map(|run| run.name.clone()).collect();
        }
        json["speedups"] = speedups.iter().map(Speedups::json).collect();
        json["best"] = json!(result.best);
        json["importance"] = json!(result.importance);
        json
    }

    /// On what it was measured, and how.
    fn measured(&self) -> String {
        let Conditions { machine, parallel, ranks, simulated, .. } = self.conditions;
        let mut text = format!(
            "Measured on {} cores ({}), {parallel} at a time; seeds {:?}.",
            machine.cores, machine.processor, self.file.seeds
        );
        if *simulated {
            text.push_str(&format!(
                " Seconds are those of simulated clocks (comm.clock = cpu): each of up to {ranks} ranks computes as on a core of \
                 its own, and its messages take as long as over the simulated link."
            ));
        } else if *ranks > machine.cores {
            text.push_str(&format!(
                " Runs of up to {ranks} ranks shared these cores: seconds compare ways to wait, not computing."
            ));
        }
        if let Some(target) = &self.file.target {
            text.push_str(&format!(
                " Target: a training `{}` of {} as the mean of {} steps.",
                target.loss, target.below, target.window
            ));
        }
        text
    }

    /// Returns the meanings of the columns of its tables.
    fn meanings(&self) -> Vec<(String, String)> {
        let mut told: Vec<(String, String)> = Vec::new();
        let is_shown = |name: &str| {
            self.sweep.trials.tables.iter().any(|table| table.columns.iter().any(|column| column == name))
        };
        let shown = NUMBERS.iter().filter(|(name, _)| is_shown(name));
        told.extend(shown.map(|(name, meaning)| ((*name).to_owned(), (*meaning).to_owned())));
        for relative in self.sweep.trials.tables.iter().flat_map(|table| &table.relative) {
            if !told.iter().any(|(name, _)| *name == relative.name) {
                told.push((relative.name.clone(), relative.meaning()));
            }
        }
        told
    }
}

/// Returns a table as its picture shows it: trials are lines, and the axes make the panels, not the drawn values.
fn pictured(table: &Table) -> Table {
    let mut table = table.clone();
    if let Some(at) = table.axes.iter().position(|axis| axis == TRIAL) {
        let first = |words: &mut Vec<String>| {
            words.truncate(at + 1);
            words.rotate_right(1);
        };
        first(&mut table.axes);
        table.trials.iter_mut().for_each(|trial| first(&mut trial.choices));
    }
    table
}
