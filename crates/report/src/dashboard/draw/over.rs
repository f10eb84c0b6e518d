//! Overlays: keys, messages, help, and questions.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::super::palette::Depth;
use super::super::view::{Question, View};

/// Keys and what they do.
const KEYS: [(&str, &str); 14] = [
    ("q", "leave; a training that this has started is asked to stop"),
    ("p", "pause after the step, and resume"),
    ("s", "save a checkpoint now"),
    ("x", "save a checkpoint and stop"),
    ("tab", "the next pane"),
    ("z, enter", "the pane alone, and all panes"),
    ("← →", "other measurements"),
    ("l", "logarithmic or linear scale"),
    ("m", "smoothing: none, 0.6, 0.9, 0.98"),
    ("↑ ↓", "scroll the log by a line"),
    ("pgup pgdn", "scroll the log by ten"),
    ("home end", "the log's beginning; follow its end"),
    ("ctrl-c", "as q; a training stops after the step"),
    ("?", "this page"),
];

/// The last row: what is said, or the keys.
pub(super) fn footer(frame: &mut Frame<'_>, area: Rect, view: &View, depth: Depth) {
    let line = match view.said() {
        Some(said) => Line::from(Span::styled(said.to_owned(), depth.warning())),
        None => {
            let keys = [("q", "quit"), ("p", "pause"), ("s", "save"), ("x", "stop"), ("tab", "pane")];
            let more = [("l", "log scale"), ("m", "smooth"), ("←→", "measures"), ("z", "zoom")];
            let all = std::iter::once(("?", "help")).chain(keys).chain(more);
            let parts = all.flat_map(|(key, what)| {
                [Span::styled(key, depth.chosen()), Span::styled(format!(" {what}  "), depth.faint())]
            });
            Line::from_iter(parts)
        }
    };
    frame.render_widget(line, area);
}

/// Help or a question, in the middle.
pub(super) fn draw(frame: &mut Frame<'_>, screen: Rect, view: &View, depth: Depth) {
    let (title, lines): (_, Vec<Line<'_>>) = match (view.question, view.help) {
        (Some(question), _) => {
            let text = match question {
                Question::End => "Stop the training? It finishes its step and saves.",
                Question::Stop => "Stop the run after saving?",
            };
            ("question", vec![Line::from(text), Line::from("y: stop   any other key: go on")])
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
