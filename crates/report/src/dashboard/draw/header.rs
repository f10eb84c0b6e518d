//! Draws the header: name, status, progress and remaining time.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::LineGauge;

use super::super::model::{Model, Status};
use super::super::palette::Depth;
use super::flow::{fitting, shortened};
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
    let width = usize::from(area.width);
    let status = shortened(&text, width.saturating_sub(4));
    // A failure is more important than the name.
    let room = width.saturating_sub(Span::raw(status.as_str()).width() + 2);
    let name = shortened(&model.name, room);
    let used = Span::raw(name.as_str()).width() + 2 + Span::raw(status.as_str()).width() + 2;
    let about = about(model).into_iter().find(|about| used + Span::raw(about.as_str()).width() <= width);
    let mut parts = vec![Span::styled(name, depth.chosen()), Span::raw("  "), Span::styled(status, style)];
    if let Some(about) = about {
        parts.push(Span::styled(format!("  {about}"), depth.faint()));
    }
    frame.render_widget(Line::from(parts), rows[0]);

    let (step, total) = (model.step(), model.total());
    let ratio = total.map_or(0.0, |total| step as f64 / total.max(1) as f64);
    let steps = match total {
        Some(total) => format!("step {}/{}", format::count(step), format::count(total)),
        None => format!("step {}", format::count(step)),
    };
    let per_epoch = model.state.as_ref().map(|state| state.steps_per_epoch).filter(|steps| *steps > 0);
    let epoch =
        per_epoch.map_or_else(String::new, |steps| format!("  epoch {:.2}", step as f64 / steps as f64));
    let over = || model.summary.as_ref().filter(|_| model.status().is_over());
    let time = match (model.left(), over()) {
        (Some(left), _) => format!("  ETA {}", format::duration(left)),
        (None, Some(summary)) => {
            let took = std::time::Duration::try_from_secs_f64(summary.wall_seconds).unwrap_or_default();
            format!("  took {}", format::duration(took))
        }
        (None, None) => String::new(),
    };
    let versions = [format!("{steps}{epoch}{time}"), format!("{steps}{time}"), steps];
    let label = fitting(&versions, width.saturating_sub(2));
    // The two parts of the gauge differ also without colours.
    let gauge = LineGauge::default().filled_symbol("━").unfilled_symbol("─");
    let gauge = gauge.ratio(ratio.clamp(0.0, 1.0)).label(label);
    frame.render_widget(gauge.filled_style(depth.good()).unfilled_style(depth.faint()), rows[1]);
}

/// Returns descriptions of the ranks, device and model, the longest first.
fn about(model: &Model) -> Vec<String> {
    let Some(state) = model.state.as_ref() else { return Vec::new() };
    let servers = match state.servers {
        0 => String::new(),
        1 => " + 1 server".to_owned(),
        servers => format!(" + {servers} servers"),
    };
    let ranks =
        if state.world_size == 1 { "1 rank".to_owned() } else { format!("{} ranks", state.world_size) };
    // The reason for the choice of a device is in the log.
    let device = state.device.split(',').next().unwrap_or_default();
    let ranks = format!("{ranks}{servers} by {} on {device}", state.strategy);
    let parameters = format::count(state.parameters);
    vec![
        format!("{ranks}  {}, {parameters} parameters", state.model),
        format!("{ranks}  {}", state.model),
        ranks,
    ]
}
