//! Draws the model, as selected by the view, onto a screen of any size.

mod flow;

mod curves;
mod header;
mod numbers;
mod over;
mod panes;
mod picture;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, BorderType, Paragraph, Wrap};

use super::layout::{LEAST, Wanted, arrange, tabs};
use super::model::Model;
use super::palette::Depth;
use super::view::{Pane, View};

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model, view: &View, depth: Depth) {
    let screen = frame.area();
    let rows = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
    let wanted = Wanted {
        numbers: &|width| rows(numbers::lines(model, width, depth).len()),
        ranks: &|width| rows(panes::lines_of_ranks(model, width, depth).iter().map(Vec::len).sum()),
    };
    let Some(areas) = arrange(screen, view, &wanted) else {
        let text = format!(
            "{} x {} is too small; the dashboard needs {} x {}",
            screen.width, screen.height, LEAST.0, LEAST.1
        );
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), screen);
    };
    header::draw(frame, areas.header, model, depth);
    if let Some(area) = areas.tabs {
        let names = tabs(view).flat_map(|(name, chosen)| {
            let style = if chosen { depth.chosen() } else { depth.faint() };
            [
                Span::styled(if chosen { format!("[{name}]") } else { format!(" {name} ") }, style),
                Span::raw(" "),
            ]
        });
        frame.render_widget(Line::from_iter(names), area);
    }
    if let Some(area) = areas.numbers {
        let inner = framed(frame, area, "numbers", false, depth);
        numbers::draw(frame, inner, model, depth);
    }
    for (pane, area) in areas.panes {
        let title = match pane {
            Pane::Curves => curves::title(model, view),
            Pane::Samples => panes::samples_title(model),
            Pane::Log => panes::log_title(view),
            Pane::Ranks => pane.title().to_owned(),
        };
        let inner = framed(frame, area, &title, pane == view.pane, depth);
        match pane {
            Pane::Curves => curves::draw(frame, inner, model, view, depth),
            Pane::Ranks => panes::ranks(frame, inner, model, depth),
            Pane::Samples => panes::samples(frame, inner, model, depth),
            Pane::Log => panes::log(frame, inner, model, view, depth),
        }
    }
    over::footer(frame, areas.footer, view, depth);
    over::draw(frame, screen, view, depth);
}

/// Draws a frame with a title. Returns the inner area.
fn framed(frame: &mut Frame<'_>, area: Rect, title: &str, chosen: bool, depth: Depth) -> Rect {
    let style = if chosen { depth.chosen() } else { depth.faint() };
    let block = Block::bordered().border_type(BorderType::Rounded).border_style(style);
    let block = block.title(Span::styled(format!(" {title} "), style));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}
