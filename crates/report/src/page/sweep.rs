//! The tables of sweeps and studies, with their charts.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::chart::Chart;
use crate::html::escape;
use crate::sweep::{Row, Sweep, Table};
use phalanx_run::format;

/// Columns of energy, or derived from it, whose source is stated next to each number.
const ENERGY: [&str; 3] = ["joules", "watts", "joules_per_image"];

impl Page<'_> {
    /// Writes the tables of sweeps with their charts.
    pub(super) fn sweeps(&mut self, charts: Vec<Vec<Vec<Chart>>>) {
        let report = self.report;
        for (sweep, charts) in report.sweeps.iter().zip(charts) {
            if sweep.tables.is_empty() {
                continue;
            }
            let several = report.sweeps.len() > 1;
            self.section(&if several {
                format!("Tables of {}", sweep.name)
            } else {
                "Tables of the sweep".to_owned()
            });
            for (class, text) in [("lead", &sweep.about), ("hint", &sweep.measured)] {
                if !text.is_empty() {
                    self.push(&format!("<p class=\"{class}\">{}</p>", escape(text)));
                }
            }
            for (of_sweep, charts) in sweep.tables.iter().zip(charts) {
                self.table(of_sweep);
                self.figures(charts);
            }
            self.push(&meanings(sweep));
            self.push("</section>");
        }
    }

    /// Writes a table, its notes and its failed runs.
    fn table(&mut self, of_sweep: &Table) {
        let mut head = of_sweep.axes.clone();
        for (at, name) in of_sweep.columns.iter().enumerate() {
            let name = name.replace('_', " ");
            head.push(name.clone());
            head.extend(of_sweep.is_published(at).then(|| format!("{name}, published")));
        }
        let rows: Vec<Vec<Cell>> = of_sweep.rows.iter().map(|row| cells(of_sweep, row)).collect();
        self.push(&format!("<h3>{}</h3>{}", escape(&of_sweep.title), table(&of_sweep.title, &head, &rows)));
        for note in &of_sweep.notes {
            self.push(&format!("<p class=\"hint\">{}</p>", escape(note)));
        }
        let failed = of_sweep.rows.iter().flat_map(|row| {
            row.errors.iter().map(|error| {
                format!("<li>{} failed: {}</li>", escape(&row.choices.join(", ")), escape(error))
            })
        });
        let failed: String = failed.collect();
        if !failed.is_empty() {
            self.push(&format!("<ul class=\"warnings\">{failed}</ul>"));
        }
    }
}

/// Returns the cells of a row. Predicted rows have a badge.
fn cells(of_sweep: &Table, row: &Row) -> Vec<Cell> {
    let mut cells: Vec<Cell> = row.choices.iter().cloned().map(Cell::Text).collect();
    if let Some(first) = cells.first_mut().filter(|_| row.predicted) {
        *first = Cell::Html(format!(
            "{} <span class=\"badge going\">predicted</span>",
            escape(row.choices.first().map_or("", String::as_str))
        ));
    }
    for (at, (name, number)) in of_sweep.columns.iter().zip(&row.numbers).enumerate() {
        let energy = row.energy.as_deref().filter(|_| ENERGY.contains(&name.as_str()));
        let known = energy.map_or_else(String::new, |kind| format!(" {kind}"));
        cells.push(match number {
            Some((mean, Some(deviation))) => Cell::Number(
                format!("{} ± {}{known}", format::number(*mean), format::number(*deviation)),
                *mean,
            ),
            Some((mean, None)) => Cell::Number(format!("{}{known}", format::number(*mean)), *mean),
            None if energy == Some("absent") => Cell::Text("absent".to_owned()),
            None => Cell::Empty,
        });
        if of_sweep.is_published(at) {
            cells.push(Cell::number(row.published[at], |number| number.to_string()));
        }
    }
    cells
}

/// Renders the descriptions of the columns.
fn meanings(sweep: &Sweep) -> String {
    let mut html = String::new();
    for (name, what) in &sweep.meanings {
        let name = name.replace('_', " ");
        let _ = write!(html, "<div><dt>{}</dt><dd>{}</dd></div>", escape(&name), escape(what));
    }
    if html.is_empty() {
        return html;
    }
    format!("<details><summary>Columns</summary><dl class=\"facts\">{html}</dl></details>")
}
