//! A table as words, Markdown, comma-separated values and JSON.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::energy::{is_energy, lines, word};
use super::table::{ResultTable, Row, Spread};
use super::trials::TRIAL;
use phalanx_run::EnergyKind;

impl ResultTable {
    /// Which runs failed, and why, in a line each.
    pub fn failures(&self) -> Vec<String> {
        let failure = |row: &Row| {
            let first = row.errors.first()?.lines().next().unwrap_or_default();
            Some(format!("{} failed: {first}", row.choices.join(", ")))
        };
        self.rows.iter().filter_map(failure).collect()
    }

    /// Returns the notes below the table: the number of trials, the source of energy numbers and of published numbers.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.trials().into_iter().collect();
        if self.columns.iter().any(|column| is_energy(column)) {
            let known =
                self.rows.iter().filter_map(|row| Some((row.choices.join(", "), row.energy.as_ref()?)));
            notes.extend(lines(&known.collect::<Vec<_>>()));
        }
        if !self.sources.is_empty() {
            notes.push(format!("Published: {}.", self.sources.join("; ")));
        }
        notes
    }

    /// Returns the number of trials by their ends; `None` for a table without a search.
    fn trials(&self) -> Option<String> {
        self.axes.iter().find(|axis| *axis == TRIAL)?;
        let count = |is: &dyn Fn(&Row) -> bool| self.rows.iter().filter(|row| is(row)).count();
        let failed = count(&|row| !row.errors.is_empty());
        let pruned = count(&|row| row.errors.is_empty() && row.pruned.is_some());
        let finished = count(&|row| row.errors.is_empty() && row.pruned.is_none() && row.seeds > 0);
        let all = self.rows.len();
        Some(format!("{all} trials: {finished} finished, {pruned} stopped early, {failed} failed."))
    }

    /// Its head and its rows as words; what is not known is a dash, and a row of which no run is finished says why.
    pub fn words(&self) -> Vec<Vec<String>> {
        let dash = || "–".to_owned();
        let mut head: Vec<String> = self.axes.iter().map(|name| name.replace('_', " ")).collect();
        for column in &self.columns {
            let name = column.replace('_', " ");
            head.push(name.clone());
            if self.is_published(column) {
                head.push(format!("{name}, published"));
            }
        }
        let rows = self.rows.iter().enumerate().map(|(at, row)| {
            let mut words = row.choices.clone();
            let place = self.axes.iter().position(|axis| axis == TRIAL).unwrap_or_default();
            if let (Some(mark), Some(word)) = (self.mark(at), words.get_mut(place)) {
                word.push_str(&format!(" ({mark})"));
            }
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let energy = row.energy.as_ref().filter(|_| is_energy(column)).map(|energy| energy.kind);
                words.push(match (cell, energy) {
                    (Some(cell), Some(kind)) => format!("{} {}", written(*cell, row.seeds), word(kind)),
                    (Some(cell), None) => written(*cell, row.seeds),
                    (None, Some(EnergyKind::Absent)) => word(EnergyKind::Absent).to_owned(),
                    (None, _) => dash(),
                });
                if self.is_published(column) {
                    let published = row.published.get(column);
                    words.push(published.map_or_else(dash, ToString::to_string));
                }
            }
            if row.seeds == 0 && !row.errors.is_empty() {
                words.truncate(row.choices.len());
                words.push("failed".to_owned());
            }
            words
        });
        std::iter::once(head).chain(rows).collect()
    }

    /// Returns the mark of a row: `best`, or the step at which it was stopped.
    fn mark(&self, row: usize) -> Option<String> {
        let pruned = self.rows[row].pruned.map(|step| format!("pruned at step {step}"));
        if self.best == Some(row) { Some("best".to_owned()) } else { pruned }
    }

    /// Returns true if there are published numbers for this column, of any row.
    fn is_published(&self, column: &str) -> bool {
        self.rows.iter().any(|row| row.published.contains_key(column))
    }

    /// Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.title);
        let cell = |word: &String| word.replace('|', "\\|");
        for (at, row) in self.words().iter().enumerate() {
            let _ = writeln!(text, "| {} |", row.iter().map(cell).collect::<Vec<_>>().join(" | "));
            if at == 0 {
                let line = (0..row.len()).map(|at| if at < self.axes.len() { "---" } else { "--:" });
                let _ = writeln!(text, "|{}|", line.collect::<Vec<_>>().join("|"));
            }
        }
        for note in self.failures().iter().chain(&self.notes()) {
            let _ = write!(text, "\n{note}\n");
        }
        text
    }

    /// Comma-separated values, all digits: of each number the mean and the deviation, and what is published of it; of energy how it is
    /// known; the step at which a run was stopped.
    pub fn csv(&self) -> String {
        let quoted = |word: &str| match word.contains([',', '"', '\n']) {
            true => format!("\"{}\"", word.replace('"', "\"\"")),
            false => word.to_owned(),
        };
        let mut head: Vec<String> = self.axes.iter().map(|name| quoted(name)).collect();
        for name in &self.columns {
            head.extend([quoted(name), quoted(&format!("{name}_deviation"))]);
            if self.is_published(name) {
                head.push(quoted(&format!("{name}_published")));
            }
        }
        let energy = self.columns.iter().any(|column| is_energy(column));
        head.extend(energy.then(|| "energy".to_owned()));
        let pruned = self.rows.iter().any(|row| row.pruned.is_some());
        head.extend(pruned.then(|| "pruned".to_owned()));
        head.push("seeds".to_owned());
        let mut text = format!("{}\n", head.join(","));
        for row in &self.rows {
            let mut words: Vec<String> = row.choices.iter().map(|choice| quoted(choice)).collect();
            for (name, cell) in self.columns.iter().zip(&row.cells) {
                words.push(cell.map_or_else(String::new, |spread| spread.mean.to_string()));
                let deviation = cell.and_then(|spread| spread.deviation);
                words.push(deviation.map_or_else(String::new, |deviation| deviation.to_string()));
                if self.is_published(name) {
                    words.push(row.published.get(name).map_or_else(String::new, f64::to_string));
                }
            }
            let known = row.energy.as_ref().map_or("", |energy| word(energy.kind));
            words.extend(energy.then(|| known.to_owned()));
            words.extend(pruned.then(|| row.pruned.map_or_else(String::new, |step| step.to_string())));
            words.push(row.seeds.to_string());
            let _ = writeln!(text, "{}", words.join(","));
        }
        text
    }

    /// JSON.
    pub fn json(&self) -> Value {
        let row = |(at, row): (usize, &Row)| {
            let choices = self.axes.iter().cloned().zip(row.choices.iter().cloned().map(Value::from));
            let numbers = self.columns.iter().zip(&row.cells).filter_map(|(name, cell)| {
                let Spread { mean, deviation, count } = (*cell)?;
                Some((name.clone(), json!({ "mean": mean, "deviation": deviation, "seeds": count })))
            });
            json!({
                "choices": Map::from_iter(choices), "numbers": Map::from_iter(numbers),
                "published": row.published, "seeds": row.seeds, "errors": row.errors,
                "energy": row.energy.as_ref().map(|energy| json!({ "kind": energy.kind, "how": energy.how })),
                "best": self.best == Some(at), "pruned": row.pruned,
            })
        };
        json!({
            "title": self.title, "axes": self.axes, "columns": self.columns, "sources": self.sources, "notes": self.notes(),
            "rows": self.rows.iter().enumerate().map(row).collect::<Vec<_>>(),
        })
    }
}

/// A mean with its deviation, of which two digits are told, and how many of the seeds have such a number, if not all.
fn written(Spread { mean, deviation, count }: Spread, seeds: usize) -> String {
    let mut text = match deviation {
        Some(deviation) if deviation > 0.0 && (1e-6..1e6).contains(&deviation) => {
            let decimals = (1.0 - deviation.log10().floor()).max(0.0) as usize;
            format!("{mean:.decimals$} ± {deviation:.decimals$}")
        }
        _ => phalanx_run::format::number(mean),
    };
    if count < seeds {
        text.push_str(&format!(" ({count} of {seeds})"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::search::Goal;
    use crate::sweep::{EnergySource, Objective, Outcome, Relative, Table, Trial};

    #[test]
    fn rows_are_means_over_seeds_and_say_what_failed() {
        let outcome = |loss: f64| {
            Some(Ok(Outcome { numbers: [("loss".to_owned(), loss)].into(), ..Outcome::default() }))
        };
        let mut second = outcome(3.0);
        if let Some(Ok(second)) = &mut second {
            second.numbers.insert("mb_sent".to_owned(), 5.0);
        }
        let outcomes = [outcome(1.0), second, Some(Err("no memory\nbecause".to_owned())), None];
        let trial = |name: &str, runs: &[usize]| Trial {
            choices: vec![name.into()],
            runs: runs.to_vec(),
            ..Trial::default()
        };
        let table = Table {
            title: "a table".into(),
            axes: vec!["strategy".into()],
            columns: vec!["loss".into(), "mb_sent".into()],
            trials: vec![trial("a, b", &[0, 1]), trial("c|d", &[2]), trial("e", &[3])],
            ..Table::default()
        };
        let filled = ResultTable::of(&table, &outcomes);
        let words = [
            vec!["strategy", "loss", "mb sent"],
            vec!["a, b", "2.0 ± 1.4", "5.000 (1 of 2)"],
            vec!["c|d", "failed"],
            vec!["e", "–", "–"],
        ];
        assert_eq!(filled.words(), words);
        let markdown = filled.markdown();
        assert!(
            markdown.contains("| c\\|d | failed |") && markdown.contains("c|d failed: no memory\n"),
            "{markdown}"
        );
        let csv = "strategy,loss,loss_deviation,mb_sent,mb_sent_deviation,seeds\n\
                   \"a, b\",2,1.4142135623730951,5,,2\nc|d,,,,,0\ne,,,,,0\n";
        assert_eq!(filled.csv(), csv);
        assert_eq!(filled.json()["rows"][0]["numbers"]["loss"]["mean"], 2.0);
        assert_eq!(filled.json()["rows"][1]["errors"][0], "no memory\nbecause");
    }

    #[test]
    fn rows_are_compared_seed_by_seed_and_with_what_others_published() {
        let outcome = |speed: f64, ranks: f64| {
            let numbers = [("samples_per_second".to_owned(), speed), ("ranks".to_owned(), ranks)].into();
            Some(Ok(Outcome { numbers, ..Outcome::default() }))
        };
        let outcomes =
            [outcome(100.0, 1.0), outcome(50.0, 1.0), outcome(180.0, 2.0), outcome(80.0, 2.0), None];
        let trial = |ranks: &str, runs: [usize; 2], published: Option<f64>| Trial {
            choices: vec![ranks.into()],
            runs: runs.to_vec(),
            published: published.map(|number| ("efficiency".to_owned(), number)).into_iter().collect(),
            ..Trial::default()
        };
        let efficiency =
            "name = \"efficiency\"\nof = \"samples_per_second\"\nper = \"ranks\"\nto = { ranks = 1 }";
        let efficiency: Relative = toml::from_str(efficiency).expect("sound");
        let table = Table {
            title: "scaling".into(),
            axes: vec!["ranks".into()],
            columns: vec!["efficiency".into()],
            relative: vec![efficiency],
            sources: vec!["a paper, on V100s".into()],
            trials: vec![trial("1", [0, 1], None), trial("2", [2, 3], Some(0.92)), trial("4", [4, 4], None)],
            ..Table::default()
        };
        let filled = ResultTable::of(&table, &outcomes);
        let cell = filled.rows[1].cells[0].expect("both are known");
        // 0.9 of the first seed and 0.8 of the second, not the ratio of the means.
        assert!((cell.mean - 0.85).abs() < 1e-12 && cell.count == 2, "{cell:?}");
        let words = filled.words();
        assert_eq!(words[0], ["ranks", "efficiency", "efficiency, published"]);
        assert_eq!(words[2], ["2", "0.850 ± 0.071", "0.92"]);
        assert_eq!(words[3], ["4", "–", "–"]);
        assert!(filled.markdown().ends_with("\nPublished: a paper, on V100s.\n"), "{}", filled.markdown());
        assert!(
            filled.csv().starts_with("ranks,efficiency,efficiency_deviation,efficiency_published,seeds\n")
        );
        assert_eq!(filled.json()["rows"][1]["published"]["efficiency"], 0.92);
    }
    #[test]
    fn energy_says_how_it_is_known_and_columns_of_gpus_without_numbers_are_left_out() {
        let known = |kind, how: &str| EnergySource { kind, how: how.to_owned() };
        let estimated = Outcome {
            numbers: [("joules".to_owned(), 12.0)].into(),
            energy: Some(known(EnergyKind::Estimated, "seconds x 5 W")),
            ..Outcome::default()
        };
        let absent = Outcome { energy: Some(known(EnergyKind::Absent, "no counter")), ..Outcome::default() };
        let outcomes = [Some(Ok(estimated)), Some(Ok(absent)), Some(Ok(Outcome::default()))];
        let trial =
            |name: &str, run| Trial { choices: vec![name.into()], runs: vec![run], ..Trial::default() };
        let table = Table {
            axes: vec!["way".into()],
            columns: ["joules", "gpu_mib", "loss"].map(ToOwned::to_owned).to_vec(),
            trials: vec![trial("a", 0), trial("b", 1), trial("old", 2)],
            ..Table::default()
        };
        let filled = ResultTable::of(&table, &outcomes);
        let words = filled.words();
        assert_eq!(words[0], ["way", "joules", "loss"]);
        assert_eq!(words[1], ["a", "12.00 estimated", "–"]);
        assert_eq!(words[2], ["b", "absent", "–"]);
        assert_eq!(words[3], ["old", "–", "–"]);
        assert_eq!(filled.notes(), ["Energy of a: seconds x 5 W.", "Energy of b: no counter."]);
        let csv = filled.csv();
        assert!(
            csv.starts_with(
                "way,joules,joules_deviation,loss,loss_deviation,energy,seeds\na,12,,,,estimated,1\n"
            ),
            "{csv}"
        );
        let json = filled.json();
        assert_eq!(json["rows"][0]["energy"]["kind"], "estimated");
        assert_eq!(json["rows"][1]["energy"]["how"], "no counter");
        assert_eq!(json["columns"], serde_json::json!(["joules", "loss"]));
    }

    #[test]
    fn the_best_row_and_stopped_ones_are_marked() {
        let outcome = |loss: f64, pruned| {
            let numbers = [("loss".to_owned(), loss)].into();
            Some(Ok(Outcome { numbers, pruned, ..Outcome::default() }))
        };
        let outcomes = [outcome(0.5, None), outcome(0.1, Some(20)), outcome(0.25, None), outcome(0.75, None)];
        let trial = |run: usize| Trial {
            choices: vec!["ddp".into(), run.to_string()],
            runs: vec![run],
            ..Trial::default()
        };
        let table = Table {
            axes: vec!["strategy".into(), "trial".into()],
            columns: vec!["loss".into()],
            objective: Some(Objective { measure: "loss".into(), goal: Goal::Min }),
            trials: (0..4).map(trial).collect(),
            ..Table::default()
        };
        let filled = ResultTable::of(&table, &outcomes);
        assert_eq!(filled.best, Some(2), "a stopped row is not the best");
        let words: Vec<String> = filled.words().into_iter().map(|row| row[1].clone()).collect();
        assert_eq!(words, ["trial", "0", "1 (pruned at step 20)", "2 (best)", "3"]);
        assert!(filled.csv().starts_with(
            "strategy,trial,loss,loss_deviation,pruned,seeds\nddp,0,0.5,,,1\nddp,1,0.1,,20,1\n"
        ));
        let json = filled.json();
        assert_eq!((&json["rows"][1]["pruned"], &json["rows"][2]["best"]), (&20.into(), &true.into()));
        let highest =
            Table { objective: Some(Objective { measure: "loss".into(), goal: Goal::Max }), ..table };
        assert_eq!(ResultTable::of(&highest, &outcomes).best, Some(3));
    }
}
