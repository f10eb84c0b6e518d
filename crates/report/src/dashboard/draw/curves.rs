//! Draws the curves of the selected metrics.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::symbols::Marker;
use ratatui::text::Span;
use ratatui::widgets::{Axis, Chart, Dataset, GraphType, Paragraph};

use super::super::curve::{SMOOTHING, bounds};
use super::super::model::Model;
use super::super::palette::Depth;
use super::super::view::{Group, View};
use super::flow::{flow, part};
use phalanx_charts::{labels, ticks};
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

/// Draws the names and last values of the curves, and the curves below them.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, depth: Depth) {
    let names = view.drawn_group(model).names(model);
    // A Braille character is two points wide.
    let columns = 2 * usize::from(area.width);
    let curves: Vec<_> = names.iter().filter_map(|name| model.curve(name)).collect();
    let drawn: Vec<Vec<(f64, f64)>> = curves
        .iter()
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
    let labels = names.iter().zip(&curves).enumerate().map(|(number, (name, curve))| {
        let value = curve.last().map_or_else(String::new, format::number);
        part(format!("━ {name} {value}"), depth.curve(number))
    });
    let mut legend = flow(labels.collect(), area.width, 0);
    legend.truncate(usize::from(area.height / 3).max(1));
    let above = u16::try_from(legend.len()).unwrap_or(u16::MAX);
    let [top, below] = Layout::vertical([Constraint::Length(above), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(legend), top);
    let datasets = drawn.iter().enumerate().map(|(number, points)| {
        // A single value is a mark.
        let (marker, kind) = match points.as_slice() {
            [_] => (Marker::Dot, GraphType::Scatter),
            _ => (Marker::Braille, GraphType::Line),
        };
        Dataset::default().data(points).style(depth.curve(number)).marker(marker).graph_type(kind)
    });
    let (y, values) = axis(y, view.logarithmic, usize::from(below.height));
    let step = |at: f64| Span::raw(format::count(at.max(0.0).round() as u64));
    let steps = [step(x[0]), step(0.5 * (x[0] + x[1])), step(x[1])];
    let chart = Chart::new(datasets.collect())
        .x_axis(Axis::default().bounds(x).labels(steps).style(depth.faint()))
        .y_axis(Axis::default().bounds(y).labels(values).style(depth.faint()))
        .legend_position(None);
    frame.render_widget(chart, below);
}

/// The rows between two labels of the y axis.
const ROWS: usize = 3;

/// Widens a range to round numbers. Returns it with the labels at equal distances. On a logarithmic axis the range is one
/// of exponents.
fn axis([low, high]: [f64; 2], logarithmic: bool, rows: usize) -> ([f64; 2], Vec<String>) {
    let most = (rows / ROWS).clamp(2, 6);
    let number = |at: f64| format::number(if logarithmic { 10_f64.powf(at) } else { at });
    let rough = || ([low, high], vec![number(low), number(0.5 * (low + high)), number(high)]);
    // Exponents have labels at whole numbers.
    for count in (1..=most - 1).rev() {
        // A longer range has the same step, and always two ticks.
        let [zero, step, ..] = ticks(0.0, 4.0 * (high - low), 4 * count, logarithmic)[..] else { continue };
        let step: f64 = step - zero;
        let (first, last) = ((low / step + 1e-9).floor() * step, (high / step - 1e-9).ceil() * step);
        let steps = ((last - first) / step).round();
        if !(1.0..most as f64).contains(&steps) {
            continue;
        }
        let all: Vec<f64> = (0..=steps as u32).map(|at| first + f64::from(at) * step).collect();
        let values = match logarithmic {
            true => all.iter().map(|exponent| number(*exponent)).collect(),
            false => labels(&all),
        };
        return ([first, first + steps * step], values);
    }
    rough()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_round_numbers_at_equal_distances() {
        let told = |low: f64, high: f64, logarithmic, rows| {
            let ([from, to], labels) = axis([low, high], logarithmic, rows);
            assert!(from <= low && to >= high, "{from} {to}");
            labels.join(" ")
        };
        assert_eq!(told(0.03, 1.967, false, 12), "0 1 2");
        assert_eq!(told(0.03, 1.967, false, 20), "0 0.5 1 1.5 2");
        assert_eq!(told(0.0617, 0.5525, false, 9), "0 0.5 1");
        assert_eq!(told(-2.3, 0.4, true, 20), "0.001000 0.01000 0.1000 1.000 10.00");
        assert_eq!(told(-2.3, -2.1, true, 20), "0.005012 0.006310 0.007943", "within a power of ten");
        assert_eq!(told(1e-9, 1e100, false, 3), "0 1e100");
    }
}
