//! `phalanx join`: takes part in a run that goes on, or waits until there is room.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use phalanx_run::{JoinTicket, RunFolder, StopFlag};
use phalanx_trainer::engine::RunEnd;

use super::error::CliError;
use super::interrupts::{Interrupts, stop_before_the_end};
use super::joining::{JoiningProcess, POLL};
use super::process::Display;
use super::resolve::{configuration_of, task_of};
use crate::Program;
use crate::console::{OriginalOutput, out};

/// Join a running elastic run as one more rank, or wait as a spare until there is room. Ctrl-C leaves it again.
#[derive(Debug, Args)]
pub(super) struct JoinArgs {
    /// The run's folder, which all hosts must see; the run is one that `train --elastic MIN:MAX` has begun.
    folder: PathBuf,
}

pub(super) fn run(program: &Program, args: &JoinArgs) -> Result<(), CliError> {
    let folder = RunFolder::open(&args.folder).map_err(CliError::failed)?;
    let resolved = configuration_of(program, &folder)?;
    if resolved.config.elastic().is_none() {
        let problem = format!(
            "{} is of a run whose world does not change; begin one with --elastic MIN:MAX",
            folder.path().display()
        );
        return Err(CliError::Usage(problem));
    }
    let task = task_of(program, &resolved.config)?;
    let (leave, stop) = (StopFlag::default(), StopFlag::default());
    let _interrupts = Interrupts::leave_first(&leave)?;
    // A task of a job leaves before that job's time is up, independent of the time of the other ranks.
    stop_before_the_end(&leave, Duration::from_secs(resolved.config.checkpoint.limit_margin), false)?;
    // A run that begins clears away what waited for an earlier attempt. A resumption that is not accepted yet has not begun.
    while !folder.state().exists() || folder.proposed_config().exists() {
        if leave.is_raised() {
            out("the run has not begun");
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    let ticket =
        JoinTicket::claim(&folder.joins(), resolved.config.world_size()).map_err(CliError::failed)?;
    let number = ticket.number();
    out(&format!("waits to take part in {} as rank {number}", folder.path().display()));
    let run = JoiningProcess {
        task: &task,
        folder: &folder,
        resolved: &resolved,
        stop: &stop,
        leave: &leave,
        announces: true,
    };
    match run.take_part(ticket, Display::Console, OriginalOutput::default())? {
        Some(RunEnd::Left) => out("left; the others go on"),
        Some(_) => out("the run has ended"),
        None => out("the run has ended, or needs no more ranks"),
    }
    Ok(())
}
