//! Figures: charts with legends and tables of numbers, bars, and histograms.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::chart::{Chart, Kind};
use crate::charts::ranks::Bars;
use crate::html::escape;
use crate::numbers::with_unit;
use crate::plot::{histogram, svg};

/// The controls of all curves. Scripts make them visible.
pub(super) const CONTROLS: &str = "<form class=\"controls\" id=\"controls\" hidden>\
    <label>Smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0\">\
    <output id=\"smoothing-value\" for=\"smoothing\">0</output></label>\
    <label>y axes <select id=\"scale\"><option value=\"auto\">automatic</option><option value=\"linear\">linear</option>\
    <option value=\"logarithmic\">logarithmic</option></select></label>\
    <fieldset><legend>x axes</legend><label><input type=\"radio\" name=\"across\" value=\"steps\" checked> steps</label>\
    <label><input type=\"radio\" name=\"across\" value=\"seconds\"> time</label></fieldset>\
    <button type=\"button\" id=\"whole-range\">Whole range</button>\
    <p class=\"hint\">Drag across a chart to zoom in, double-click for the whole range. With the keyboard: arrows move the cursor, \
    + and − zoom, 0 shows all.</p></form>";

/// The maximum number of lines of a chart with a legend. Otherwise the list of runs shows the colours.
const LEGEND: usize = 16;
/// The size of a histogram.
const HISTOGRAM: (f64, f64) = (640.0, 200.0);

impl Page<'_> {
    /// Writes charts in rows. Charts without a number except 0 are left out and named in a line.
    pub(super) fn figures(&mut self, charts: Vec<Chart>) {
        let (blank, shown): (Vec<Chart>, Vec<Chart>) = charts.into_iter().partition(Chart::is_blank);
        if !shown.is_empty() {
            self.push("<div class=\"figures\">");
            shown.into_iter().for_each(|chart| self.figure(chart));
            self.push("</div>");
        }
        self.blank(&blank.iter().map(|chart| chart.title.as_str()).collect::<Vec<_>>());
    }

    /// Names the charts that are left out.
    pub(super) fn blank(&mut self, titles: &[&str]) {
        if !titles.is_empty() {
            let titles = escape(&titles.join(", ")).into_owned();
            self.push(&format!(
                "<p class=\"hint blank\">Not shown, because all values are 0 or absent: {titles}.</p>"
            ));
        }
    }

    /// Writes a chart, and adds its data for the scripts.
    pub(super) fn figure(&mut self, mut chart: Chart) {
        let (limit, drawn) = self.limits;
        chart.id = format!("chart-{}", self.charts.len() + 1);
        // Tables of many lines would dominate the page size; scripts create them on demand.
        let numbers = if chart.lines.len() <= LEGEND { numbers(&chart) } else { String::new() };
        chart.thin(limit);
        let id = &chart.id;
        let mut html = format!(
            "<figure class=\"chart\" id=\"{id}\" data-kind=\"{}\"><figcaption>{}</figcaption><div class=\"canvas\">{}</div>",
            if chart.kind == Kind::Areas { "areas" } else { "lines" },
            escape(&chart.title),
            svg(&chart, drawn),
        );
        if chart.lines.len() <= LEGEND {
            html.push_str("<ul class=\"legend\">");
            for line in &chart.lines {
                let style = line.style.unwrap_or_default().classes();
                let name = escape(&line.name);
                let _ = write!(html, "<li><span class=\"swatch {style}\"></span>{name}</li>");
            }
            html.push_str("</ul>");
        }
        let _ =
            write!(html, "<details class=\"behind\"><summary>Numbers</summary>{numbers}</details></figure>");
        self.push(&html);
        self.charts.push(chart);
    }

    /// Writes stacked bars.
    pub(super) fn bars(&mut self, bars: &Bars) {
        let most = bars.values.iter().map(|parts| parts.iter().sum::<f64>()).fold(0.0, f64::max);
        let mut html = format!("<figure class=\"bars\"><figcaption>{}</figcaption>", escape(&bars.title));
        if bars.parts.len() > 1 {
            html.push_str("<ul class=\"legend\">");
            for (name, style) in &bars.parts {
                let name = escape(name);
                let _ = write!(html, "<li><span class=\"block b{}\"></span>{name}</li>", style.colour);
            }
            html.push_str("</ul>");
        }
        html.push_str("<table><tbody>");
        for (name, parts) in bars.names.iter().zip(&bars.values) {
            html.push_str(&row_of_bars(bars, name, parts, most));
        }
        html.push_str("</tbody></table></figure>");
        self.push(&html);
    }

    /// Writes a histogram over the integers from 0.
    pub(super) fn histogram(&mut self, title: &str, counts: &[f64]) {
        let last = counts.iter().rposition(|count| *count > 0.0).map_or(0, |last| last + 1);
        let counts = &counts[..last];
        let all = counts.iter().sum::<f64>().max(1.0);
        let rows: Vec<Vec<Cell>> = counts
            .iter()
            .enumerate()
            .map(|(at, count)| {
                vec![
                    Cell::Number(at.to_string(), at as f64),
                    Cell::Number(format!("{count}"), *count),
                    Cell::Number(format!("{:.1} %", 100.0 * count / all), *count),
                ]
            })
            .collect();
        let numbers = table(title, &["by".to_owned(), "count".to_owned(), "share".to_owned()], &rows);
        let picture = phalanx_charts::plot(&histogram(title, counts), HISTOGRAM, title);
        self.push(&format!(
            "<figure class=\"histogram\"><figcaption>{}</figcaption>{picture}<details class=\"behind\">\
             <summary>Numbers</summary>{numbers}</details></figure>",
            escape(title)
        ));
    }
}

/// Renders the bar of a rank: its parts, of a width relative to the longest bar.
fn row_of_bars(bars: &Bars, name: &str, parts: &[f64], most: f64) -> String {
    let mut html =
        format!("<tr><th scope=\"row\">{}</th><td class=\"bar\"><span class=\"track\">", escape(name));
    let mut labels = Vec::new();
    for ((part, style), value) in bars.parts.iter().zip(parts).filter(|(_, value)| **value > 0.0) {
        let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
        labels.push(format!("{part} {}", with_unit(*value, bars.unit)));
        let _ = write!(
            html,
            "<span class=\"part b{}\" style=\"width:{width:.2}%\" title=\"{}\"></span>",
            style.colour,
            escape(&format!("{part}: {}", with_unit(*value, bars.unit)))
        );
    }
    let all = with_unit(parts.iter().sum(), bars.unit);
    let parts = if labels.len() > 1 {
        format!("<span class=\"parts\">{}</span>", escape(&labels.join(", ")))
    } else {
        String::new()
    };
    let _ = write!(html, "</span>{parts}</td><td class=\"number\">{}</td></tr>", escape(&all));
    html
}

/// Returns the table of a chart: the first, least, largest and last value of each line.
fn numbers(chart: &Chart) -> String {
    let head = ["line", "points", "first", "least", "most", "last"].map(str::to_owned);
    let rows: Vec<Vec<Cell>> = chart
        .lines
        .iter()
        .map(|line| {
            let values = &line.values;
            let written = |value: f64| with_unit(value, chart.unit);
            let finite = || values.iter().copied().filter(|value| value.is_finite());
            vec![
                Cell::Text(line.name.clone()),
                Cell::Number(values.len().to_string(), values.len() as f64),
                Cell::number(finite().next(), written),
                Cell::number(finite().reduce(f64::min), written),
                Cell::number(finite().reduce(f64::max), written),
                Cell::number(finite().next_back(), written),
            ]
        })
        .collect();
    table(&chart.title, &head, &rows)
}
