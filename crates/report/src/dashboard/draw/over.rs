//! Draws the footer and overlays: keys, messages, help, and questions.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::super::palette::Depth;
use super::super::view::{Question, View};
use super::flow::shortened;

/// The keys and their actions.
const KEYS: [(&str, &str); 14] = [
    ("q", "quit; stops the training if this dashboard started it"),
    ("p", "pause after the step, and resume"),
    ("s", "save a checkpoint now"),
    ("x", "save a checkpoint and stop"),
    ("tab", "next pane"),
    ("z, enter", "zoom the pane, and back"),
    ("← →", "other metrics"),
    ("l", "logarithmic or linear scale"),
    ("m", "smoothing: none, 0.6, 0.9, 0.98"),
    ("↑ ↓", "scroll the log by a line"),
    ("pgup pgdn", "scroll the log by ten lines"),
    ("home end", "go to the start of the log; follow its end"),
    ("ctrl-c", "as q; stops the training after the step"),
    ("?", "this help"),
];

/// Draws the last row: the message, or the keys.
pub(super) fn footer(frame: &mut Frame<'_>, area: Rect, view: &View, depth: Depth) {
    let line = match view.message() {
        Some(message) => {
            Line::from(Span::styled(shortened(message, usize::from(area.width)), depth.warning()))
        }
        None => {
            let keys = [("q", "quit"), ("p", "pause"), ("s", "save"), ("x", "stop"), ("tab", "pane")];
            let more = [("l", "log scale"), ("m", "smooth"), ("←→", "metrics"), ("z", "zoom")];
            let all = std::iter::once(("?", "help")).chain(keys).chain(more);
            let mut room = usize::from(area.width);
            // Keys that do not fit are in the help.
            let fitting = all.take_while(|(key, what)| {
                let wide = Span::raw(*key).width() + 1 + what.len();
                let fits = wide <= room;
                room = room.saturating_sub(wide + 2);
                fits
            });
            let parts = fitting.flat_map(|(key, what)| {
                [Span::styled(key, depth.chosen()), Span::styled(format!(" {what}  "), depth.faint())]
            });
            Line::from_iter(parts)
        }
    };
    frame.render_widget(line, area);
}

/// Draws the help or a question in the middle of the screen.
pub(super) fn draw(frame: &mut Frame<'_>, screen: Rect, view: &View, depth: Depth) {
    let (title, lines): (_, Vec<Line<'_>>) = match (view.question, view.help) {
        (Some(question), _) => {
            let text = match question {
                Question::End => "Stop the training? It finishes its step and saves.",
                Question::Stop => "Stop the run after saving?",
            };
            ("question", vec![Line::from(text), Line::from("y: stop   any other key: continue")])
        }
        (None, true) => {
            let row = |(key, what): (&'static str, &'static str)| {
                Line::from(vec![Span::styled(format!("{key:<10}"), depth.chosen()), Span::raw(what)])
            };
            ("keys", KEYS.into_iter().map(row).collect())
        }
        (None, false) => return,
    };
    let width = lines.iter().map(Line::width).max().unwrap_or_default() + 4;
    let width = u16::try_from(width).unwrap_or(u16::MAX).min(screen.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(u16::MAX).min(screen.height);
    let area = Rect { x: (screen.width - width) / 2, y: (screen.height - height) / 2, width, height };
    frame.render_widget(Clear, area);
    let block = Block::bordered().title(format!(" {title} ")).border_style(depth.warning());
    frame.render_widget(Paragraph::new(lines).block(block), area);
}
