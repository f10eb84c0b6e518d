//! `phalanx train --tui`: ranks under a supervisor on a thread, and the dashboard over their run's folder.

use std::time::SystemTime;

use super::interrupts::Interrupts;
use crate::console::{err, out};
use phalanx_launch::{LaunchError, Supervisor, SupervisorOutcome};
use phalanx_report::dashboard::{OwnTraining, show};
use phalanx_run::{RunFolder, Summary, finished};
use phalanx_trainer::engine::refusal;

/// Runs ranks to their end and shows the dashboard; prints the end of the run afterwards. All lines of the ranks go to
/// their logs, which the dashboard shows. A terminal that fails ends the dashboard, but not the training.
pub(super) fn supervise(
    supervisor: &Supervisor,
    folder: &RunFolder,
    program: &str,
    interrupts: &Interrupts,
) -> Result<SupervisorOutcome, LaunchError> {
    let begun = SystemTime::now();
    let ended = std::thread::scope(|scope| {
        let supervising = scope.spawn(|| supervisor.run(|| interrupts.count()));
        let own = OwnTraining { ended: &|| supervising.is_finished(), interrupt: &|| interrupts.interrupt() };
        if let Err(error) = show(folder, Some(own), refusal, &|| interrupts.count()) {
            err(&format!("warning: the dashboard cannot be shown, and the training goes on: {error}"));
        }
        supervising.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    let written = std::fs::metadata(folder.summary()).and_then(|metadata| metadata.modified());
    let of_this = written.is_ok_and(|written| written >= begun);
    match Summary::read(&folder.summary()).ok().filter(|_| of_this) {
        Some(told) => {
            if told.status == "interrupted" {
                out(&told.how_to_continue(program, folder.path()));
            }
            finished(&told).iter().for_each(|line| out(line));
        }
        None => out(&format!("nothing was trained; see {}", folder.log(0).display())),
    }
    Ok(ended)
}
