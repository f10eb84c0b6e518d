//! The use of captions by a text-to-image model: the tables and pictures of `phalanx explain`.

use phalanx_run::{CaptionUse, LevelErrors, ReadFeatures, format};

use super::Page;
use super::results::evaluation;
use super::table::{Cell, table};
use crate::evaluation::Captions;
use crate::html::escape;
use crate::run::RunData;

impl Page<'_> {
    /// Writes the tables and pictures of runs that were explained.
    pub(super) fn captions(&mut self) {
        let report = self.report;
        let explained: Vec<(&RunData, &Captions)> =
            report.runs.iter().filter_map(|run| Some((run, run.evaluation.captions.as_ref()?))).collect();
        if explained.is_empty() {
            return;
        }
        self.section("Captions");
        for (run, Captions { tables, pictures }) in explained {
            let step = format::count(tables.step);
            let title = match report.runs.len() {
                1 => format!("After step {step}"),
                _ => format!("{}, after step {step}", run.name),
            };
            self.push(&format!("<h3>{}</h3>", escape(&title)));
            self.push(&features(tables));
            if !tables.levels.is_empty() {
                self.push(&levels(tables));
            }
            let pictures: String =
                pictures.iter().map(|picture| evaluation(picture, &picture.title)).collect();
            if !pictures.is_empty() {
                self.push(&format!("<div class=\"figures\">{pictures}</div>"));
            }
        }
        self.push("</section>");
    }
}

/// Renders the attributes that linear readers find.
fn features(explained: &CaptionUse) -> String {
    let title = format!("What a linear reader finds in {} held-out captions", explained.samples);
    let row = |read: &ReadFeatures| {
        let shares = read.accuracy.iter().map(|share| percent(Some(*share), ""));
        std::iter::once(Cell::Text(read.label())).chain(shares).collect()
    };
    let rows: Vec<Vec<Cell>> = explained.features.iter().map(row).collect();
    table(&title, &head("read from", &[], explained), &rows)
}

/// Renders the rise of errors by wrong captions at each level of noise.
fn levels(explained: &CaptionUse) -> String {
    let row = |level: &LevelErrors| {
        let number = |value: f64| Cell::Number(format::number(value), value);
        let rises = std::iter::once(Some(level.without_caption)).chain(level.wrong.iter().copied());
        let rises = rises.map(|rise| percent(rise, "+"));
        [number(level.level), number(level.error)].into_iter().chain(rises).collect()
    };
    let rows: Vec<Vec<Cell>> = explained.levels.iter().map(row).collect();
    let title = "Rise of the error without a caption, and with one wrong value in it";
    table(title, &head("level of noise", &["error", "no caption"], explained), &rows)
}

fn head(first: &str, more: &[&str], explained: &CaptionUse) -> Vec<String> {
    let more = more.iter().copied().chain(explained.attributes.iter().map(String::as_str));
    std::iter::once(first).chain(more).map(str::to_owned).collect()
}

/// Returns a share in percent, with a sign in front of those that are not negative.
fn percent(share: Option<f64>, sign: &str) -> Cell {
    let written = |share: f64| {
        let sign = if share >= 0.0 { sign } else { "" };
        format!("{sign}{:.1} %", 100.0 * share)
    };
    Cell::number(share, written)
}
