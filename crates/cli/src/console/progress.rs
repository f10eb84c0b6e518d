//! A progress bar of a command that is no training.

use std::io::IsTerminal as _;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar on standard error, if that is a terminal.
#[derive(Debug)]
pub struct TaskProgress {
    bar: Option<ProgressBar>,
}

impl TaskProgress {
    /// Creates a bar that counts `things`.
    pub fn new(things: &str) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
            let template =
                format!("{{wide_bar:.cyan/blue}} {{pos}}/{{len}} {things} · {{elapsed}} · ETA {{eta}}");
            bar.set_style(
                ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Self { bar }
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
