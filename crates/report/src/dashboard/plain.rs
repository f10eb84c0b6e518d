//! A run as plain lines, where there is no terminal; and single requests.

use std::time::Duration;

use super::asking::Asking;
use super::model::{Model, Status};
use super::source::Source;
use super::tail::TextTail;
use phalanx_run::{Line, Refusal, Request, RunError, RunFolder, finished, format};

/// The interval at which files are read.
const LOOK: Duration = Duration::from_millis(250);

/// The outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The run has ended, or the request was heard.
    Done,
    /// The run has failed, or does not take the request, for this reason.
    Failed(String),
    /// A signal has come before.
    Interrupted,
}

/// Tells the lines of a run's metrics as a training tells them, from its first step on, what becomes of it, and its
/// summary.
pub fn follow(folder: &RunFolder, interrupts: &dyn Fn() -> usize, tell: &mut dyn FnMut(&str)) -> Outcome {
    let (mut source, mut model) = (Source::new(folder, None), Model::default());
    let mut metrics = TextTail::whole(&folder.metrics());
    let (mut told, mut step, signals) = (None, 0, interrupts());
    loop {
        // The state first: what it says of the end is not believed before all lines are read that came before it.
        source.look(&mut model);
        let news = metrics.look();
        if news.restarted {
            step =
                step.min(news.lines.last().and_then(|line| Line::parse(line)).map_or(0, |line| line.step()));
            tell(&format!("resumed after step {step}"));
        }
        for line in news.lines.iter().filter_map(|line| Line::parse(line)) {
            // What a resumed run has done before was told before.
            if line.step() <= step {
                continue;
            }
            step = line.step();
            let total = model.total().map_or_else(String::new, |total| format!("/{total}"));
            let width = total.len().saturating_sub(1);
            tell(&format!("step {step:>width$}{total}  {}", format::metrics(&line)));
            if let Some(evaluated) = format::evaluated(&line) {
                tell(&evaluated);
            }
        }
        let status = model.status();
        if told.as_ref() != Some(&status) {
            match &status {
                Status::Starting => tell("the run has not begun yet"),
                Status::Paused => tell(&format!("paused after step {}", model.step())),
                Status::Training if told == Some(Status::Paused) => tell("goes on"),
                Status::Training => {}
                Status::Ended(_) => {
                    model.summary.iter().flat_map(finished).for_each(|line| tell(&line));
                    return Outcome::Done;
                }
                Status::Failed(why) => return Outcome::Failed(format!("the run has failed: {why}")),
                Status::Gone => {
                    return Outcome::Failed("the run's process is gone and has left no word".to_owned());
                }
            }
            told = Some(status);
        }
        if interrupts() > signals {
            return Outcome::Interrupted;
        }
        std::thread::sleep(LOOK);
    }
}

/// Sends a request to a run and waits until the run has taken it. `refusal` says which requests its strategy refuses.
///
/// # Errors
/// If the request cannot be written.
pub fn ask(
    folder: &RunFolder,
    request: Request,
    refusal: Refusal,
    interrupts: &dyn Fn() -> usize,
    tell: &mut dyn FnMut(&str),
) -> Result<Outcome, RunError> {
    let (mut source, mut model, mut asking) =
        (Source::new(folder, None), Model::default(), Asking::new(refusal));
    source.look(&mut model);
    if let Err(why) = asking.ask(folder, request, &model.status())? {
        return Ok(Outcome::Failed(why));
    }
    loop {
        source.look(&mut model);
        for told in asking.look(&model.status()) {
            match told {
                Ok(heard) => tell(&heard),
                Err(why) if asking.is_done() => return Ok(Outcome::Failed(why)),
                Err(problem) => tell(&problem),
            }
        }
        if asking.is_done() {
            return Ok(Outcome::Done);
        }
        if interrupts() > 0 {
            return Ok(Outcome::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
