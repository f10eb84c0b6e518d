//! Figures: charts with legends and tables of numbers, bars, and histograms.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::chart::Chart;
use crate::charts::ranks::Bars;
use crate::html::escape;
use crate::numbers::with_unit;
use crate::svg::svg;

/// The controls of all curves. Scripts make them visible.
pub(super) const CONTROLS: &str = "<form class=\"controls\" id=\"controls\" hidden>\
    <label>Smoothing <input type=\"range\" id=\"smoothing\" min=\"0\" max=\"0.99\" step=\"0.01\" value=\"0\">\
    <output id=\"smoothing-value\" for=\"smoothing\">0</output></label>\
    <label><input type=\"checkbox\" id=\"logarithmic\"> Logarithmic</label>\
    <fieldset><legend>x axis</legend><label><input type=\"radio\" name=\"across\" value=\"steps\" checked> steps</label>\
    <label><input type=\"radio\" name=\"across\" value=\"seconds\"> seconds</label></fieldset>\
    <button type=\"button\" id=\"whole-range\">Whole range</button>\
    <p class=\"hint\">Drag across a chart to zoom in, double-click for the whole range. With the keyboard: arrows move the cursor, \
    + and − zoom, 0 shows all.</p></form>";

/// The maximum number of lines of a chart with a legend. Otherwise the list of runs shows the colours.
const LEGEND: usize = 16;

impl Page<'_> {
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
            if chart.kind == crate::chart::Kind::Areas { "areas" } else { "lines" },
            escape(&chart.title),
            svg(&chart, drawn),
        );
        if chart.lines.len() <= LEGEND {
            html.push_str("<ul class=\"legend\">");
            for line in &chart.lines {
                let _ = write!(
                    html,
                    "<li><span class=\"swatch s{} d{}\"></span>{}</li>",
                    line.colour,
                    line.dash,
                    escape(&line.name)
                );
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
            for (name, colour) in &bars.parts {
                let _ = write!(html, "<li><span class=\"block b{colour}\"></span>{}</li>", escape(name));
            }
            html.push_str("</ul>");
        }
        html.push_str("<table><tbody>");
        for (name, parts) in bars.names.iter().zip(&bars.values) {
            let _ = write!(
                html,
                "<tr><th scope=\"row\">{}</th><td class=\"bar\"><span class=\"track\">",
                escape(name)
            );
            let mut labels = Vec::new();
            for ((part, colour), value) in bars.parts.iter().zip(parts).filter(|(_, value)| **value > 0.0) {
                let width = if most > 0.0 { 100.0 * value / most } else { 0.0 };
                labels.push(format!("{part} {}", with_unit(*value, bars.unit)));
                let _ = write!(
                    html,
                    "<span class=\"part b{colour}\" style=\"width:{width:.2}%\" title=\"{}\"></span>",
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
        }
        html.push_str("</tbody></table></figure>");
        self.push(&html);
    }

    /// Writes a histogram over the integers from 0.
    pub(super) fn histogram(&mut self, title: &str, counts: &[f64]) {
        let last = counts.iter().rposition(|count| *count > 0.0).map_or(0, |last| last + 1);
        let counts = &counts[..last];
        let (most, all) = (counts.iter().copied().fold(1.0, f64::max), counts.iter().sum::<f64>().max(1.0));
        let step = 600.0 / counts.len().max(1) as f64;
        let mut html = format!(
            "<figure class=\"histogram\"><figcaption>{0}</figcaption><svg class=\"plot\" viewBox=\"0 0 640 200\" role=\"img\" \
             aria-label=\"{0}\"><path class=\"grid\" d=\"M30 170H630\"/>",
            escape(title)
        );
        // Skip numbers for which there is no room.
        let every = counts.len().div_ceil(20).max(1);
        for (at, count) in counts.iter().enumerate() {
            let (x, tall) = (30.0 + step * at as f64, count / most * 150.0);
            let _ = write!(
                html,
                "<rect class=\"area s0\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"><title>{at}: {count} ({:.1} %)</title></rect>",
                x + 0.1 * step,
                170.0 - tall,
                0.8 * step,
                100.0 * count / all
            );
            if at % every == 0 {
                let _ = write!(
                    html,
                    "<text x=\"{:.1}\" y=\"186\" text-anchor=\"middle\">{at}</text>",
                    x + 0.5 * step
                );
            }
        }
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
        let _ = write!(
            html,
            "</svg><details class=\"behind\"><summary>Numbers</summary>{numbers}</details></figure>"
        );
        self.push(&html);
    }
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
