//! The table of settings, compared over runs, and the table of metrics with a single value.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::charts::curves::SingleMeasurement;
use crate::html::escape;
use crate::numbers::with_unit;
use crate::settings::{SettingRow, Settings, compare};

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

    /// Writes the settings: of several runs the keys that differ, then those with other values than the defaults. The
    /// defaults are folded.
    pub(super) fn settings(&mut self) {
        let report = self.report;
        let all: Vec<&Settings> = report.runs.iter().map(|run| &run.settings).collect();
        let rows = compare(&all, &report.defaults);
        if rows.is_empty() {
            return;
        }
        let several = report.runs.len() > 1;
        self.section(if several { "Settings compared" } else { "Settings" });
        self.push(
            "<p class=\"filter\" hidden><label>Keys with <input type=\"search\" data-filters=\"settings\"></label></p>",
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
        let names: Vec<&str> = match different {
            0 => Vec::new(),
            _ => report.runs.iter().map(|run| run.name.as_str()).collect(),
        };
        let first = rows.iter().take_while(|row| row.differs() || row.is_changed).count();
        let (changed, defaults) = rows.split_at(first);
        if !changed.is_empty() {
            self.push(&settings_table("Settings", changed, &names));
        }
        if !defaults.is_empty() {
            let keys = if defaults.len() == 1 {
                "key has its default value"
            } else {
                "keys have their default values"
            };
            self.push(&format!(
                "<details class=\"defaults\"><summary>{} {keys}</summary>{}</details>",
                defaults.len(),
                settings_table("Settings with their default values", defaults, &names)
            ));
        }
        self.push("</section>");
    }
}

/// Renders a table of settings, with a column for each of the names, or one column if there are none.
fn settings_table(caption: &str, rows: &[SettingRow<'_>], names: &[&str]) -> String {
    let mut html = format!(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table class=\"settings\">\
         <caption>{caption}</caption><thead><tr><th scope=\"col\">key</th>"
    );
    match names {
        [] => html.push_str("<th scope=\"col\">value</th>"),
        names => names.iter().for_each(|name| {
            let _ = write!(html, "<th scope=\"col\">{}</th>", escape(name));
        }),
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        let class = if row.differs() { " class=\"differs\"" } else { "" };
        let _ = write!(html, "<tr{class}><th scope=\"row\">{}</th>", escape(row.key));
        if row.differs() {
            for value in &row.values {
                match value {
                    Some(value) => drop(write!(html, "<td>{}</td>", escape(value))),
                    None => html.push_str("<td class=\"none\">–</td>"),
                }
            }
        } else {
            let value = row.values.first().copied().flatten().unwrap_or_default();
            let span = if names.len() > 1 { format!(" colspan=\"{}\"", names.len()) } else { String::new() };
            let _ = write!(html, "<td{span}>{}</td>", escape(value));
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div>");
    html
}
