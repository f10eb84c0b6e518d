//! A progress bar of a command that is no training.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Creates a bar on standard error.
pub(super) fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct TaskProgress {
    bar: Option<ProgressBar>,
}

impl TaskProgress {
    /// Creates a bar that counts `things`.
    pub fn new(things: &str) -> Self {
        let template =
            format!("{{wide_bar:.cyan/blue}} {{pos}}/{{len}} {things} · {{elapsed}} · ETA {{eta}}");
        Self { bar: std::io::stderr().is_terminal().then(|| bar(Some(0), &template)) }
    }

    /// Shows that `done` of `all` are done.
    pub fn set(&self, done: usize, all: usize) {
        if let Some(bar) = &self.bar {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
