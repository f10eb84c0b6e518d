//! Draws the numbers of the run: throughput, communication, data, memory and power.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::super::model::Model;
use super::super::palette::Depth;
use phalanx_run::{UsageLine, format};

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    for (row, (name, value)) in area.rows().zip(rows(model)) {
        let line = Line::from(vec![Span::styled(format!("{name:<7}"), depth.faint()), Span::raw(value)]);
        frame.render_widget(line, row);
    }
}

/// Returns names and values, the most important first.
fn rows(model: &Model) -> Vec<(&'static str, String)> {
    let mut rows = Vec::new();
    let summary = model.summary.as_ref().filter(|_| model.status().is_over());
    let rate = summary.map(|summary| summary.images_per_second).or(model.latest("images_per_s"));
    if let Some(rate) = rate {
        let steps =
            model.pace().map_or_else(String::new, |pace| format!(", {} steps/s", format::number(pace)));
        rows.push(("speed", format!("{} images/s{steps}", format::count(rate.round() as u64))));
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
        let hidden = hidden.map_or_else(String::new, |hidden| format!(", {} hidden", percent(hidden)));
        rows.push(("comm", format!("{} exposed{hidden}", percent(exposed))));
    }
    if let Some(data) = most(|usage| Some(usage.times.data_seconds)).or(model.latest("data_share")) {
        rows.push(("data", format!("{} waiting", percent(data))));
    }
    let resident: Vec<u64> =
        model.ranks.values().filter_map(|recent| recent.last()?.resident_bytes).collect();
    let memory =
        (!resident.is_empty()).then(|| resident.iter().sum::<u64>() as f64).or(model.latest("memory_bytes"));
    if let Some(memory) = memory {
        let whose = if resident.len() > 1 { ", all ranks" } else { "" };
        rows.push(("memory", format!("{}{whose}", format::bytes(memory as u64))));
    }
    if let Some((watts, kind)) = model.watts() {
        rows.push(("power", format!("{watts:.0} W {kind}").trim_end().to_owned()));
    }
    let test = model.names().filter(|name| name.starts_with("test_")).filter_map(|name| {
        Some(format!("{} {}", name.strip_prefix("test_")?, format::number(model.curve(name)?.last()?)))
    });
    let test: Vec<String> = test.collect();
    if !test.is_empty() {
        rows.push(("test", test.join("  ")));
    }
    rows
}
