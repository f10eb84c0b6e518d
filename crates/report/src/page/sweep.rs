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
        self.push(&findings(of_sweep));
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

/// Returns the cells of a row. The best, stopped and predicted rows have a badge.
fn cells(of_sweep: &Table, row: &Row) -> Vec<Cell> {
    let mut cells: Vec<Cell> = row.choices.iter().cloned().map(Cell::Text).collect();
    let badge = match (row.best, row.pruned, row.predicted) {
        (true, ..) => Some(("good", "best".to_owned())),
        (_, Some(step), _) => Some(("going", format!("pruned at step {step}"))),
        (.., true) => Some(("going", "predicted".to_owned())),
        _ => None,
    };
    // The number of a trial follows the axes.
    let place = of_sweep.axes.iter().position(|axis| axis == "trial").unwrap_or_default();
    if let (Some((class, badge)), Some(cell)) = (badge, cells.get_mut(place)) {
        let word = escape(row.choices.get(place).map_or("", String::as_str));
        *cell = Cell::Html(format!("{word} <span class=\"badge {class}\">{badge}</span>"));
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

/// Renders the best row with its commands, and the importance of the keys.
fn findings(of_sweep: &Table) -> String {
    let mut html = String::new();
    if let Some(best) = &of_sweep.best {
        let measure = best.measure.replace('_', " ");
        let (name, measure) = (escape(&best.name), escape(&measure));
        let (value, run) = (format::number(best.value), escape(&best.run));
        let _ = write!(html, "<p>Best: {name}, {measure} {value}, <code>{run}</code></p><ul>");
        if !best.settings.is_empty() {
            let _ = write!(html, "<li>settings: <code>{}</code></li>", escape(&best.settings.join(" ")));
        }
        for command in &best.commands {
            let _ = write!(html, "<li><code>{}</code></li>", escape(command));
        }
        html.push_str("</ul>");
    }
    if let Some(importance) = &of_sweep.importance {
        let rest = ("combinations of keys".to_owned(), importance.interactions);
        let row = |(key, share): &(String, f64)| {
            vec![Cell::Text(key.clone()), Cell::Number(format!("{:.0} %", 100.0 * share), *share)]
        };
        let rows: Vec<Vec<Cell>> = importance.keys.iter().chain([&rest]).map(row).collect();
        let title = format!("Importance of keys for {}", importance.measure.replace('_', " "));
        html.push_str(&table(&title, &["key".to_owned(), "share of variance".to_owned()], &rows));
    }
    html
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
