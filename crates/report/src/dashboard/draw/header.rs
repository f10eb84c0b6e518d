//! Draws the header: name, status, progress and remaining time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::LineGauge;

use super::super::model::{Model, Status};
use super::super::palette::Depth;
use phalanx_run::format;

pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, model: &Model, depth: Depth) {
    let rows = Layout::vertical([Constraint::Length(1); 2]).split(area);
    let (text, style) = match model.status() {
        Status::Starting => ("starting".to_owned(), depth.faint()),
        Status::Training => ("training".to_owned(), depth.good()),
        Status::Paused => ("PAUSED".to_owned(), depth.warning()),
        Status::Ended(how) => (how, depth.chosen()),
        Status::Failed(why) => (format!("FAILED {why}"), depth.bad()),
        Status::Gone => ("GONE: its process ended without a report".to_owned(), depth.bad()),
    };
    let mut parts =
        vec![Span::styled(model.name.clone(), depth.chosen()), Span::raw("  "), Span::styled(text, style)];
    if let Some(about) = about(model) {
        parts.push(Span::styled(format!("  {about}"), depth.faint()));
    }
    frame.render_widget(Line::from(parts), rows[0]);

    let (step, total) = (model.step(), model.total());
    let ratio = total.map_or(0.0, |total| step as f64 / total.max(1) as f64);
    let mut label = match total {
        Some(total) => format!("step {}/{}", format::count(step), format::count(total)),
        None => format!("step {}", format::count(step)),
    };
    if let Some(per_epoch) =
        model.state.as_ref().map(|state| state.steps_per_epoch).filter(|steps| *steps > 0)
    {
        label.push_str(&format!("  epoch {:.2}", step as f64 / per_epoch as f64));
    }
    if let Some(left) = model.left() {
        label.push_str(&format!("  ETA {}", format::duration(left)));
    } else if let Some(summary) = model.summary.as_ref().filter(|_| model.status().is_over()) {
        let took = std::time::Duration::try_from_secs_f64(summary.wall_seconds).unwrap_or_default();
        label.push_str(&format!("  took {}", format::duration(took)));
    }
    // The two parts of the gauge differ also without colours.
    let gauge = LineGauge::default().filled_symbol("━").unfilled_symbol("─");
    let gauge = gauge.ratio(ratio.clamp(0.0, 1.0)).label(label);
    frame.render_widget(gauge.filled_style(depth.good()).unfilled_style(depth.faint()), rows[1]);
}

/// Returns a description of the ranks, device and model.
fn about(model: &Model) -> Option<String> {
    let state = model.state.as_ref()?;
    let servers = if state.servers > 0 { format!(" + {} servers", state.servers) } else { String::new() };
    let (ranks, strategy) = (state.world_size, &state.strategy);
    let parameters = format::count(state.parameters);
    Some(format!(
        "{ranks} ranks{servers} by {strategy} on {}  {}, {parameters} parameters",
        state.device, state.model
    ))
}
