//! The table of settings, compared over runs, and the table of metrics with a single value.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::charts::curves::SingleMeasurement;
use crate::html::escape;
use crate::numbers::with_unit;
use crate::settings::{Settings, compare};

impl Page<'_> {
    /// Writes the table of metrics with a single value in each run.
    pub(super) fn measured_once(&mut self, once: &[SingleMeasurement]) {
        self.section("Single measurements");
        let runs = &self.report.runs;
        let html = if let [_] = runs.as_slice() {
            let rows: Vec<Vec<Cell>> = once
                .iter()
                .map(|of| {
                    let value = of.values.first().copied().flatten();
                    vec![Cell::Text(of.name.clone()), Cell::number(value, |value| with_unit(value, of.unit))]
                })
                .collect();
            table("Single measurements", &["measure".to_owned(), "value".to_owned()], &rows)
        } else {
            let head: Vec<String> =
                std::iter::once("run".to_owned()).chain(once.iter().map(|of| of.name.clone())).collect();
            let rows: Vec<Vec<Cell>> = runs
                .iter()
                .enumerate()
                .map(|(at, run)| {
                    let cells =
                        once.iter().map(|of| Cell::number(of.values[at], |value| with_unit(value, of.unit)));
                    std::iter::once(Cell::Text(run.name.clone())).chain(cells).collect()
                })
                .collect();
            table("Single measurements", &head, &rows)
        };
        self.push(&html);
        self.push("</section>");
    }

    /// Writes the settings. For several runs, the keys that differ come first.
    pub(super) fn settings(&mut self) {
        let report = self.report;
        let all: Vec<&Settings> = report.runs.iter().map(|run| &run.settings).collect();
        let rows = compare(&all);
        if rows.is_empty() {
            return;
        }
        let several = report.runs.len() > 1;
        self.section(if several { "Settings compared" } else { "Settings" });
        self.push(
            "<p class=\"filter\" hidden><label>Keys with <input type=\"search\" data-filters=\"all-settings\"></label></p>",
        );
        let different = rows.iter().filter(|row| row.differs()).count();
        if several {
            let text = match different {
                0 => "The runs have the same settings.".to_owned(),
                1 => "The runs differ in one key.".to_owned(),
                count => format!("The runs differ in {count} keys, which come first."),
            };
            self.push(&format!("<p>{text}</p>"));
        }
        let mut html = "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Settings\"><table id=\"all-settings\" class=\"settings\"><caption>Settings</caption><thead><tr><th scope=\"col\">key</th>".to_owned();
        match (several, different) {
            (true, 1..) => {
                for run in &report.runs {
                    let _ = write!(html, "<th scope=\"col\">{}</th>", escape(&run.name));
                }
            }
            _ => html.push_str("<th scope=\"col\">value</th>"),
        }
        html.push_str("</tr></thead><tbody>");
        let across = if different > 0 { report.runs.len() } else { 1 };
        for row in &rows {
            let _ = write!(
                html,
                "<tr{}><th scope=\"row\">{}</th>",
                if row.differs() { " class=\"differs\"" } else { "" },
                escape(row.key)
            );
            if row.differs() {
                for value in &row.values {
                    match value {
                        Some(value) => drop(write!(html, "<td>{}</td>", escape(value))),
                        None => html.push_str("<td class=\"none\">–</td>"),
                    }
                }
            } else {
                let value = row.values.first().copied().flatten().unwrap_or_default();
                let span = if across > 1 { format!(" colspan=\"{across}\"") } else { String::new() };
                let _ = write!(html, "<td{span}>{}</td>", escape(value));
            }
            html.push_str("</tr>");
        }
        html.push_str("</tbody></table></div></section>");
        self.push(&html);
    }
}
