//! Tables of the classes of the last evaluation of a classifier.

use phalanx_run::{ClassReport, ClassRow, format};

use super::Page;
use super::table::{Cell, table};
use crate::html::escape;
use crate::run::RunData;

impl Page<'_> {
    /// Writes the tables of the classes.
    pub(super) fn classes(&mut self) {
        let report = self.report;
        let evaluated: Vec<(&RunData, &ClassReport)> =
            report.runs.iter().filter_map(|run| Some((run, run.classes.as_ref()?))).collect();
        if evaluated.is_empty() {
            return;
        }
        self.section("Classes");
        for (run, classes) in evaluated {
            let step = format::count(classes.step);
            let title = match report.runs.len() {
                1 => format!("Evaluation after step {step}"),
                _ => format!("{}, after step {step}", run.name),
            };
            self.push(&format!("<h3>{}</h3>", escape(&title)));
            self.push(&rows(&title, classes));
        }
        self.push("</section>");
    }
}

/// The table of the classes.
fn rows(title: &str, classes: &ClassReport) -> String {
    let head = ["class", "samples", "precision", "recall", "F1"].map(str::to_owned);
    let row = |row: &ClassRow| {
        let number = |value: f64| Cell::Number(format::number(value), value);
        vec![
            Cell::Text(row.name.clone()),
            Cell::Number(format::count(row.samples as u64), row.samples),
            number(row.precision),
            number(row.recall),
            number(row.f1),
        ]
    };
    let rows: Vec<Vec<Cell>> = classes.classes.iter().map(row).collect();
    let all = table(title, &head, &rows);
    match rows.len() <= 20 {
        true => all,
        false => format!("<details><summary>All {} classes</summary>{all}</details>", rows.len()),
    }
}
