//! Draws the curves of the selected metrics.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, LegendPosition, Paragraph};

use super::super::curve::{SMOOTHING, bounds};
use super::super::model::Model;
use super::super::palette::Depth;
use super::super::view::{Group, View};
use phalanx_run::format;

/// Returns the title of the pane.
pub(super) fn title(model: &Model, view: &View) -> String {
    let mut title = match view.drawn_group(model) {
        Group::Headline => model.headline().unwrap_or_default().to_owned(),
        group => group.title().to_owned(),
    };
    if view.logarithmic {
        title.push_str(", log scale");
    }
    let smoothing = SMOOTHING[view.smoothing];
    if smoothing > 0.0 {
        title.push_str(&format!(", smoothed {smoothing}"));
    }
    title
}

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, depth: Depth) {
    let names = view.drawn_group(model).names(model);
    // A Braille character is two points wide.
    let columns = 2 * usize::from(area.width);
    let curves = names.iter().filter_map(|name| model.curve(name));
    let drawn: Vec<Vec<(f64, f64)>> = curves
        .clone()
        .map(|curve| curve.drawn(SMOOTHING[view.smoothing], view.logarithmic, columns))
        .collect();
    let Some((x, y)) = bounds(&drawn) else {
        let text = match (names.is_empty(), view.logarithmic) {
            (true, _) => "no metrics yet",
            (false, true) => "no value is above 0; press l for a linear scale",
            (false, false) => "no value is finite",
        };
        return frame.render_widget(Paragraph::new(text).style(depth.faint()), area);
    };
    let labels: Vec<String> = names
        .iter()
        .zip(curves)
        .map(|(name, curve)| format!("{name} {}", curve.last().map_or_else(String::new, format::number)))
        .collect();
    let datasets = drawn.iter().zip(labels).enumerate().map(|(number, (points, label))| {
        let line = Dataset::default().name(label).data(points).style(depth.curve(number));
        line.marker(Marker::Braille).graph_type(GraphType::Line)
    });
    let value = |at: f64| format::number(if view.logarithmic { 10_f64.powf(at) } else { at });
    let middle = |[from, to]: [f64; 2]| 0.5 * (from + to);
    let step = |at: f64| Span::raw(format::count(at.max(0.0).round() as u64));
    let chart = Chart::new(datasets.collect())
        .x_axis(
            Axis::default().bounds(x).labels([step(x[0]), step(middle(x)), step(x[1])]).style(depth.faint()),
        )
        .y_axis(
            Axis::default()
                .bounds(y)
                .labels([value(y[0]), value(middle(y)), value(y[1])])
                .style(depth.faint()),
        )
        .legend_position(Some(LegendPosition::TopRight))
        .hidden_legend_constraints((
            ratatui::layout::Constraint::Percentage(90),
            ratatui::layout::Constraint::Percentage(60),
        ));
    frame.render_widget(chart, area);
}
