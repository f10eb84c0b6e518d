//! Draws the numbers of the run: throughput, communication, data, memory and power.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::super::model::Model;
use super::super::palette::Depth;
use super::flow::{Part, flow, part};
use phalanx_run::{UsageLine, format};

/// The width of the names.
const NAMES: usize = 7;

/// Returns the lines of the pane at a width.
pub(super) fn lines(model: &Model, width: u16, depth: Depth) -> Vec<Line<'static>> {
    let row = |(name, values): (&str, Vec<String>)| {
        let mut parts: Vec<Part> =
            values.into_iter().map(|value| part(value, ratatui::style::Style::new())).collect();
        if let Some(first) = parts.first_mut() {
            first.splice(0..0, part(format!("{name:<NAMES$}"), depth.faint()));
        }
        flow(parts, width, NAMES)
    };
    rows(model).into_iter().flat_map(row).collect()
}

/// Draws the numbers. Lines without room are counted in the last row.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    let mut lines = lines(model, area.width, depth);
    let room = usize::from(area.height);
    if lines.len() > room && room > 0 {
        let more = lines.len() - room + 1;
        lines.truncate(room - 1);
        lines.push(Line::styled(format!("{more} more lines"), depth.faint()));
    }
    for (row, line) in area.rows().zip(lines) {
        frame.render_widget(line, row);
    }
}

/// Returns names and values, the most important first.
fn rows(model: &Model) -> Vec<(&'static str, Vec<String>)> {
    let mut rows = Vec::new();
    let summary = model.summary.as_ref().filter(|_| model.status().is_over());
    let rate = summary.map(|summary| summary.samples_per_second).or(model.latest("samples_per_s"));
    if let Some(rate) = rate {
        let steps = model.pace().map(|pace| format!("{} steps/s", format::number(pace)));
        let images = format!("{} samples/s", format::count(rate.round() as u64));
        let share = model.latest("peak_share").map(format::of_peak);
        rows.push(("speed", std::iter::once(images).chain(steps).chain(share).collect()));
    }
    let percent = |share: f64| format!("{:.0}%", 100.0 * share);
    // The other ranks wait for the slowest one.
    let most = |of: fn(&UsageLine) -> Option<f64>| {
        model.ranks.values().filter_map(|recent| recent.share(of)).reduce(f64::max)
    };
    let exposed =
        most(|usage| Some(usage.times.communication_exposed_seconds)).or(model.latest("communication_share"));
    if let Some(exposed) = exposed {
        let hidden = most(|usage| Some(usage.times.communication_hidden_seconds));
        let hidden = hidden.map(|hidden| format!("{} hidden", percent(hidden)));
        rows.push(("comm", std::iter::once(format!("{} exposed", percent(exposed))).chain(hidden).collect()));
    }
    if let Some(data) = most(|usage| Some(usage.times.data_seconds)).or(model.latest("data_share")) {
        rows.push(("data", vec![format!("{} waiting", percent(data))]));
    }
    let resident: Vec<u64> =
        model.ranks.values().filter_map(|recent| recent.last()?.resident_bytes).collect();
    let memory =
        (!resident.is_empty()).then(|| resident.iter().sum::<u64>() as f64).or(model.latest("memory_bytes"));
    if let Some(memory) = memory {
        let whose = (resident.len() > 1).then(|| format!("of {} ranks", resident.len()));
        rows.push(("memory", std::iter::once(format::bytes(memory as u64)).chain(whose).collect()));
    }
    if let Some((watts, kind)) = model.watts() {
        rows.push(("power", vec![format!("{watts:.0} W {kind}").trim_end().to_owned()]));
    }
    // Losses are named above the curves.
    let test = model.names().filter(|name| name.starts_with("test_") && !name.ends_with("loss"));
    let test = test.filter_map(|name| {
        Some(format!("{} {}", name.strip_prefix("test_")?, format::number(model.curve(name)?.last()?)))
    });
    let test: Vec<String> = test.collect();
    if !test.is_empty() {
        rows.push(("test", test));
    }
    rows
}
