//! Plain output of a run without a terminal, and single requests.

use std::time::Duration;

use super::followed::{FollowedRun, RunNews};
use super::model::{Model, Status};
use super::pending_requests::PendingRequests;
use super::source::Source;
use phalanx_run::{Line, Refusal, Request, RunError, RunFolder, finished, format};

/// The interval at which files are read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// The outcome of following a run or sending a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The run has ended, or has taken the request.
    Done,
    /// The run has failed or refused the request, for this reason.
    Failed(String),
    /// A signal arrived first.
    Interrupted,
}

/// Prints the metrics of a run from its first step on, changes of its status, and its summary, until it ends.
pub fn follow(folder: &RunFolder, interrupts: &dyn Fn() -> usize, print: &mut dyn FnMut(&str)) -> Outcome {
    let mut run = FollowedRun::new(folder);
    let (mut shown, mut step, signals) = (None, 0, interrupts());
    loop {
        let RunNews { restarted, lines, status } = run.poll();
        let model = run.model();
        if restarted {
            step = step.min(lines.last().map_or(0, Line::step));
            print(&format!("resumed after step {step}"));
        }
        for line in &lines {
            // Steps that a resumed run repeats were printed before.
            if line.step() <= step {
                continue;
            }
            step = line.step();
            let total = model.total().map_or_else(String::new, |total| format!("/{total}"));
            let width = total.len().saturating_sub(1);
            print(&format!("step {step:>width$}{total}  {}", format::metrics(line, model.headline())));
            if let Some(evaluated) = format::evaluated(line) {
                print(&evaluated);
            }
        }
        if shown.as_ref() != Some(&status) {
            match &status {
                Status::Starting => print("the run has not started yet"),
                Status::Paused => print(&format!("paused after step {}", model.step())),
                Status::Training if shown == Some(Status::Paused) => print("resumed"),
                Status::Training => {}
                Status::Ended(_) => {
                    model.summary.iter().flat_map(finished).for_each(|line| print(&line));
                    return Outcome::Done;
                }
                Status::Failed(why) => return Outcome::Failed(format!("the run has failed: {why}")),
                Status::Gone => {
                    return Outcome::Failed("the run's process is gone and left no report".to_owned());
                }
            }
            shown = Some(status);
        }
        if interrupts() > signals {
            return Outcome::Interrupted;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a request to a run and waits until the run takes it. `refusal` returns why its strategy refuses a request.
///
/// # Errors
/// If the request cannot be written.
pub fn send_request(
    folder: &RunFolder,
    request: Request,
    refusal: Refusal,
    interrupts: &dyn Fn() -> usize,
    print: &mut dyn FnMut(&str),
) -> Result<Outcome, RunError> {
    let (mut source, mut model, mut pending) =
        (Source::new(folder, None), Model::default(), PendingRequests::new(refusal));
    source.poll(&mut model);
    if let Err(why) = pending.send(folder, request, &model.status())? {
        return Ok(Outcome::Failed(why));
    }
    loop {
        source.poll(&mut model);
        for reply in pending.poll(&model.status()) {
            match reply {
                Ok(message) => print(&message),
                Err(why) if pending.is_empty() => return Ok(Outcome::Failed(why)),
                Err(problem) => print(&problem),
            }
        }
        if pending.is_empty() {
            return Ok(Outcome::Done);
        }
        if interrupts() > 0 {
            return Ok(Outcome::Interrupted);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}
