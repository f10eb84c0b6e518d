//! Draws the panes of ranks, samples and the log.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};

use super::super::model::Model;
use super::super::palette::Depth;
use super::super::usage::Recent;
use super::super::view::View;
use super::picture;
use phalanx_run::RankSummary;
use phalanx_run::format;

/// Draws two rows for each rank: its activity, and its memory by kind.
pub(super) fn ranks(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    let over = model.summary.as_ref().filter(|_| model.status().is_over());
    let lines: Vec<[Line<'_>; 2]> = match over {
        // The summary covers the whole run, not only the last seconds.
        Some(summary) if !summary.ranks.is_empty() => {
            summary.ranks.iter().map(|rank| of_summary(rank, depth)).collect()
        }
        _ => model.ranks.iter().map(|(rank, recent)| of_usage(*rank, recent, depth)).collect(),
    };
    if lines.is_empty() {
        let text = "no usage yet; log.usage_seconds = 0 turns it off";
        return frame
            .render_widget(Paragraph::new(text).style(depth.faint()).wrap(Wrap { trim: true }), area);
    }
    let hidden = lines.len().saturating_sub(usize::from(area.height / 2));
    for (row, line) in area.rows().zip(lines.into_iter().flatten()) {
        frame.render_widget(line, row);
    }
    if hidden > 0 {
        let text = format!(" {hidden} more ranks ");
        let width = u16::try_from(text.len()).unwrap_or(0).min(area.width);
        let corner = Rect { x: area.right() - width, y: area.bottom() - 1, width, height: 1 };
        frame.render_widget(Span::styled(text, depth.warning()), corner);
    }
}

/// Returns a bar of eight characters.
fn bar(share: f64) -> String {
    let filled = (8.0 * share.clamp(0.0, 1.0)).round() as usize;
    format!("{}{}", "█".repeat(filled), "░".repeat(8 - filled))
}

fn kinds<'a>(kinds: impl IntoIterator<Item = (&'a str, u64)>, depth: Depth) -> Line<'static> {
    let parts: Vec<String> =
        kinds.into_iter().map(|(name, bytes)| format!("{name} {}", format::bytes(bytes))).collect();
    Line::from(Span::styled(format!("   {}", parts.join("  ")), depth.faint()))
}

fn of_usage(rank: usize, recent: &Recent, depth: Depth) -> [Line<'static>; 2] {
    let Some(last) = recent.last() else { return [Line::default(), Line::default()] };
    let mut first = vec![Span::styled(format!("{rank:<3}"), depth.chosen())];
    if let Some(busy) = last.cpu_percent {
        first.push(Span::raw(format!("cpu {busy:>4.0}%  ")));
    }
    if let Some(busy) = last.gpu.gpu_percent {
        first.push(Span::raw(format!("gpu {} {busy:.0}%  ", bar(busy / 100.0))));
    }
    if let Some(exposed) = recent.share(|usage| Some(usage.times.communication_exposed_seconds)) {
        first.push(Span::raw("comm "));
        let style = if exposed > 0.3 { depth.warning() } else { depth.good() };
        first.push(Span::styled(bar(exposed), style));
        first.push(Span::raw(format!(" {:.0}%  ", 100.0 * exposed)));
    }
    let network = [
        ("↑", recent.rate(|usage| Some(usage.transfers.network_sent_bytes as f64))),
        ("↓", recent.rate(|usage| Some(usage.transfers.network_received_bytes as f64))),
    ];
    for (arrow, rate) in network {
        if let Some(rate) = rate.filter(|rate| *rate > 0.0) {
            first.push(Span::raw(format!("{arrow}{}/s ", format::bytes(rate as u64))));
        }
    }
    if let Some(watts) = last.watts() {
        first.push(Span::raw(format!(" {watts:.0} W")));
    }
    if !last.host.is_empty() {
        first.push(Span::styled(format!("  {}", last.host), depth.faint()));
    }
    let gpu = last.gpu.gpu_memory_bytes.map(|bytes| ("gpu", bytes));
    [Line::from(first), kinds(last.memory_by_kind().into_iter().chain(gpu), depth)]
}

fn of_summary(rank: &RankSummary, depth: Depth) -> [Line<'static>; 2] {
    let whole = rank.step_seconds.max(1e-9);
    let share = |seconds: f64| 100.0 * seconds / whole;
    let first = format!(
        "comm {} {:.0}% exposed, {:.0}% hidden  data {:.0}%  sent {}",
        bar(rank.communication_exposed_seconds / whole),
        share(rank.communication_exposed_seconds),
        share(rank.communication_hidden_seconds),
        share(rank.data_seconds),
        format::bytes(rank.bytes_sent),
    );
    let memory = [
        ("param", rank.parameter_bytes),
        ("grad", rank.gradient_bytes),
        ("optim", rank.optimizer_bytes),
        ("peak", rank.peak_memory_bytes.unwrap_or_default()),
    ];
    let first = Line::from(vec![Span::styled(format!("{:<3}", rank.rank), depth.chosen()), Span::raw(first)]);
    [first, kinds(memory.into_iter().filter(|(_, bytes)| *bytes > 0), depth)]
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

pub(super) fn log(frame: &mut Frame<'_>, area: Rect, model: &Model, view: &View, depth: Depth) {
    let end =
        model.log.len().saturating_sub(view.log_back).max(usize::from(area.height).min(model.log.len()));
    let begin = end.saturating_sub(usize::from(area.height));
    for (row, line) in area.rows().zip(model.log.range(begin..end)) {
        let whose = line.rank.map_or_else(|| "  ".to_owned(), |rank| format!("{rank} "));
        let style = match () {
            () if line.text.contains(" ERROR ") => depth.bad(),
            () if line.text.contains(" WARN ") || line.text.starts_with("warning") => depth.warning(),
            () => ratatui::style::Style::new(),
        };
        let text = vec![Span::styled(whose, depth.faint()), Span::styled(short(&line.text), style)];
        frame.render_widget(Line::from(text), row);
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
