//! Draws the panes of ranks, samples and the log.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::model::Model;
use super::super::palette::Depth;
use super::super::usage::Recent;
use super::super::view::View;
use super::flow::{Part, flow, part, words};
use super::picture;
use phalanx_run::RankSummary;
use phalanx_run::format;

/// Returns the lines of each rank at a width: its activity, and its memory by kind.
pub(super) fn lines_of_ranks(model: &Model, width: u16, depth: Depth) -> Vec<Vec<Line<'static>>> {
    let over = model.summary.as_ref().filter(|_| model.status().is_over());
    let parts: Vec<[Vec<Part>; 2]> = match over {
        // The summary covers the whole run, not only the last seconds.
        Some(summary) if !summary.ranks.is_empty() => {
            summary.ranks.iter().map(|rank| of_summary(rank, depth)).collect()
        }
        _ => model.ranks.iter().map(|(rank, recent)| of_usage(*rank, recent, depth)).collect(),
    };
    let lines = |parts: [Vec<Part>; 2]| parts.into_iter().flat_map(|parts| flow(parts, width, 3)).collect();
    parts.into_iter().map(lines).collect()
}

/// Draws the lines of ranks. Ranks without room are counted in the last row.
pub(super) fn ranks(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    let ranks = lines_of_ranks(model, area.width, depth);
    if ranks.is_empty() {
        let text = "no usage yet; log.usage_seconds = 0 turns it off";
        return frame
            .render_widget(Paragraph::new(text).style(depth.faint()).wrap(Wrap { trim: true }), area);
    }
    let room = usize::from(area.height);
    let all: usize = ranks.iter().map(Vec::len).sum();
    let (mut shown, mut hidden) = (Vec::new(), 0);
    for lines in ranks {
        // One row is for the number of hidden ranks.
        let fits = hidden == 0
            && shown.len() + lines.len() <= if all <= room { room } else { room.saturating_sub(1) };
        if fits {
            shown.extend(lines);
        } else {
            hidden += 1;
        }
    }
    if hidden > 0 {
        let text = if hidden == 1 { "1 more rank".to_owned() } else { format!("{hidden} more ranks") };
        shown.push(Line::styled(text, depth.warning()));
    }
    for (row, line) in area.rows().zip(shown) {
        frame.render_widget(line, row);
    }
}

/// Returns a bar of eight characters.
fn bar(share: f64) -> String {
    let filled = (8.0 * share.clamp(0.0, 1.0)).round() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(8 - filled))
}

/// Returns the memory by kind, indented below the number of a rank.
fn kinds<'a>(kinds: impl IntoIterator<Item = (&'a str, u64)>, depth: Depth) -> Vec<Part> {
    let mut parts: Vec<Part> = kinds
        .into_iter()
        .map(|(name, bytes)| part(format!("{name} {}", format::bytes(bytes)), depth.faint()))
        .collect();
    if let Some(first) = parts.first_mut() {
        first.insert(0, Span::raw("   "));
    }
    parts
}

fn of_usage(rank: usize, recent: &Recent, depth: Depth) -> [Vec<Part>; 2] {
    let Some(last) = recent.last() else { return [Vec::new(), Vec::new()] };
    let plain = Style::new();
    let mut first: Vec<Part> = Vec::new();
    if let Some(busy) = last.cpu_percent {
        first.push(part(format!("cpu {busy:>4.0}%"), plain));
    }
    if let Some(busy) = last.gpu.gpu_percent {
        first.push(part(format!("gpu {} {busy:.0}%", bar(busy / 100.0)), plain));
    }
    if let Some(exposed) = recent.share(|usage| Some(usage.times.communication_exposed_seconds)) {
        let style = if exposed > 0.3 { depth.warning() } else { depth.good() };
        first.push(vec![
            Span::raw("comm "),
            Span::styled(bar(exposed), style),
            Span::raw(format!(" {:.0}%", 100.0 * exposed)),
        ]);
    }
    let network = [
        ("↑", recent.rate(|usage| Some(usage.transfers.network_sent_bytes as f64))),
        ("↓", recent.rate(|usage| Some(usage.transfers.network_received_bytes as f64))),
    ];
    for (arrow, rate) in network {
        if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
            first.push(part(format!("{arrow}{}/s", format::bytes(rate as u64)), plain));
        }
    }
    if let Some(watts) = last.watts() {
        first.push(part(format!("{watts:.0} W"), plain));
    }
    if !last.host.is_empty() {
        first.push(part(last.host.clone(), depth.faint()));
    }
    let gpu = last.gpu.gpu_memory_bytes.map(|bytes| ("gpu", bytes));
    [numbered(rank, first, depth), kinds(last.memory_by_kind().into_iter().chain(gpu), depth)]
}

/// Adds the number of a rank to its first part.
fn numbered(rank: usize, mut parts: Vec<Part>, depth: Depth) -> Vec<Part> {
    let number = Span::styled(format!("{rank:<3}"), depth.chosen());
    match parts.first_mut() {
        Some(first) => first.insert(0, number),
        None => parts.push(vec![number]),
    }
    parts
}

fn of_summary(rank: &RankSummary, depth: Depth) -> [Vec<Part>; 2] {
    let whole = rank.step_seconds.max(1e-9);
    let share = |seconds: f64| 100.0 * seconds / whole;
    let (exposed, hidden) = (rank.communication_exposed_seconds, rank.communication_hidden_seconds);
    let first = [
        format!("comm {} {:.0}% exposed", bar(exposed / whole), share(exposed)),
        format!("{:.0}% hidden", share(hidden)),
        format!("data {:.0}%", share(rank.data_seconds)),
        format!("sent {}", format::bytes(rank.bytes_sent)),
    ];
    let memory = [
        ("param", rank.parameter_bytes),
        ("grad", rank.gradient_bytes),
        ("optim", rank.optimizer_bytes),
        ("peak", rank.peak_memory_bytes.unwrap_or_default()),
    ];
    let first = first.map(|text| part(text, Style::new())).to_vec();
    [numbered(rank.rank, first, depth), kinds(memory.into_iter().filter(|(_, bytes)| *bytes > 0), depth)]
}

/// Returns the title of the pane of samples.
pub(super) fn samples_title(model: &Model) -> String {
    let step = model
        .sample
        .as_ref()
        .and_then(|sample| sample.name.strip_prefix("step-")?.strip_suffix(".png")?.parse::<u64>().ok());
    step.map_or_else(|| "samples".to_owned(), |step| format!("samples of step {}", format::count(step)))
}

pub(super) fn samples(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    match &model.sample {
        Some(sample) => picture::draw(frame.buffer_mut(), area, &sample.picture, depth),
        None => frame.render_widget(Paragraph::new("no samples yet").style(depth.faint()), area),
    }
}

/// Returns the title of the pane of the log.
pub(super) fn log_title(view: &View) -> String {
    match view.log_back {
        0 => "log".to_owned(),
        back => format!("log, {back} lines back"),
    }
}

/// Draws the log up to the line that the user has scrolled to. Long lines take several rows.
pub(super) fn log(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, depth: Depth) {
    let room = usize::from(area.height);
    let end = model.log.len().saturating_sub(view.log_back).max(room.min(model.log.len()));
    let mut rows: Vec<Line<'static>> = Vec::new();
    for line in model.log.range(..end).rev() {
        if rows.len() >= room {
            break;
        }
        let whose = line.rank.map_or_else(|| "  ".to_owned(), |rank| format!("{rank} "));
        let style = match () {
            () if line.text.contains(" ERROR ") => depth.bad(),
            () if line.text.contains(" WARN ") || line.text.starts_with("warning") => depth.warning(),
            () => Style::new(),
        };
        let lines = words(part(whose, depth.faint()), &short(&line.text), style, area.width);
        rows.extend(lines.into_iter().rev());
    }
    rows.truncate(room);
    for (row, line) in area.rows().zip(rows.into_iter().rev()) {
        frame.render_widget(line, row);
    }
}

/// Shortens a log line: removes the date and the module, as in `03:12:55 INFO asked to save`.
fn short(text: &str) -> String {
    let parts = || {
        let (time, rest) = text.split_once(' ')?;
        let (_, time) = time.strip_suffix('Z')?.split_once('T')?;
        let (level, rest) = rest.trim_start().split_once(' ')?;
        let (_, said) = rest.split_once(": ")?;
        let word = |level: &&str| ["TRACE", "DEBUG", "INFO", "WARN", "ERROR"].contains(level);
        Some(format!("{} {} {said}", time.get(..8)?, Some(level).filter(word)?))
    };
    parts().unwrap_or_else(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_logs_are_short_and_others_stay() {
        let line = "2026-11-23T03:25:55.123456Z  INFO phalanx_trainer::engine: paused after step 3: all well";
        assert_eq!(short(line), "03:25:55 INFO paused after step 3: all well");
        for other in ["step 3/30  loss 0.5", "thread 'main' panicked at x", "", "2026-11-23T03:25:55.1Z"] {
            assert_eq!(short(other), other);
        }
    }
}
