//! The last evaluation of a classifier: confusion matrix, worst mistakes, and a table of the classes.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use phalanx_run::{ClassReport, ClassRow, Links, format};

use super::Page;
use super::table::{Cell, table};
use crate::html::escape;
use crate::run::RunData;

/// The pictures of an evaluation, with their descriptions.
const PICTURES: [(&str, &str); 2] =
    [("confusion.svg", "Confusion matrix"), ("mistakes.svg", "Worst mistakes")];
/// The largest picture on a page, in bytes.
const BYTES: u64 = 4 << 20;

impl Page<'_> {
    /// Writes the evaluations of classifiers.
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
            self.push(&pictures(run));
            self.push(&rows(&title, classes));
        }
        self.push("</section>");
    }
}

/// The pictures of a run, as they are in its folder.
fn pictures(run: &RunData) -> String {
    let mut html = "<div class=\"evaluation\">".to_owned();
    for (file, what) in PICTURES {
        let path = run.folder.join("evaluation").join(file);
        if std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() > BYTES) {
            let _ = write!(html, "<p class=\"hint\">{what}: see {}</p>", escape(&path.display().to_string()));
            continue;
        }
        let Ok(svg) = Links::Refuse.read(&path) else { continue };
        let _ = write!(
            html,
            "<figure><img alt=\"{what}\" style=\"max-width:100%;height:auto\" src=\"data:image/svg+xml;base64,{}\"></figure>",
            STANDARD.encode(svg)
        );
    }
    html.push_str("</div>");
    html
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
