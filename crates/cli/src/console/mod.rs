//! The console: a progress bar on a terminal, plain lines elsewhere, and a table at the end.

mod colors;
pub mod format;
mod json_lines;
mod means;
mod progress;
mod standby;
mod table;
mod verbosity;

pub use colors::{color_option, set_colors};
pub use json_lines::JsonLines;
pub use progress::TaskProgress;
pub use standby::OriginalOutput;
pub use verbosity::Verbosity;

use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use means::StepMeans;

use phalanx_run::Summary;
use phalanx_trainer::engine::{Event, Observer, Started, StepReport};

/// Shows a run to the one who started it.
#[derive(Debug)]
pub struct Console {
    bar: Option<ProgressBar>,
    last_drawn: Instant,
    /// The measure that leads.
    headline: Option<String>,
    /// The steps since the last line.
    means: StepMeans,
    /// Where plain lines go, if not to this process's standard output.
    to: Option<File>,
}

impl Console {
    /// A console for this process's standard streams. The bar is drawn on standard error if that is a terminal;
    /// plain lines go to standard output.
    pub fn new() -> Self {
        let bar = std::io::stderr()
            .is_terminal()
            .then(|| progress::bar(None, "{wide_bar:.cyan/blue} {pos}/{len} · {elapsed} · ETA {eta}\n{msg}"));
        Self { bar, ..Self::plain(None) }
    }

    /// A console of plain lines, for a rank that takes over from another one; to this process's standard output or where that
    /// was before it was redirected.
    pub fn plain(to: Option<File>) -> Self {
        Self { bar: None, last_drawn: Instant::now(), headline: None, means: StepMeans::default(), to }
    }

    fn out(&self, text: &str) {
        match &self.to {
            // A closed output must not end a training.
            Some(to) => drop(writeln!(&mut &*to, "{text}")),
            None => out(text),
        }
    }

    /// Prints a line, above the bar if there is one.
    pub fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => self.out(text),
        }
    }
}

impl Default for Console {
    fn default() -> Self {
        Self::new()
    }
}

/// Prints to standard output. A closed output, as behind `head`, must not end a training.
pub fn out(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Prints a note on what a command does to standard error, unless the user wants results only.
pub fn note(text: &str) {
    if Verbosity::get() > Verbosity::Quiet {
        err(text);
    }
}

/// Prints to standard error.
pub fn err(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

impl Observer for Console {
    fn started(&mut self, started: &Started) {
        self.headline.clone_from(&started.headline);
        for line in table::started(started) {
            self.line(&line);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(started.steps.total);
            bar.set_position(started.steps.done);
            bar.reset_eta();
            bar.enable_steady_tick(Duration::from_millis(500));
        }
    }

    fn step(&mut self, report: &StepReport, logged: bool) {
        self.means.add(report);
        let is_drawn = self.bar.is_some() && self.last_drawn.elapsed() > Duration::from_millis(200);
        if let Some(bar) = &self.bar {
            bar.set_position(report.step);
        }
        if !(logged || is_drawn) {
            return;
        }
        let means = StepReport { phases: self.means.phases(), ..report.clone() };
        let text = format::step(&means, self.headline.as_deref());
        if logged {
            self.means.clear();
        }
        let line = || {
            let width = report.total.to_string().len();
            format!("step {:>width$}/{}  {text}", report.step, report.total)
        };
        match &self.bar {
            Some(bar) => {
                if report.step == 1 {
                    bar.println(line());
                }
                bar.set_message(text);
                self.last_drawn = Instant::now();
            }
            None if logged => self.out(&line()),
            None => {}
        }
    }

    fn event(&mut self, event: &Event) {
        self.line(&format::event(event));
    }

    fn finished(&mut self, summary: &Summary) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        for line in phalanx_run::finished(summary) {
            self.out(&line);
        }
    }
}
