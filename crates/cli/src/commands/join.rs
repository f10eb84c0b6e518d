//! `phalanx join`: takes part in a run that goes on, or waits until there is room.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use super::interrupts::{Interrupts, stop_before_the_end};
use super::train::configuration_of;
use super::{CliError, rank, task_of};
use crate::Program;
use crate::console::{KeptOutput, out};
use phalanx_run::StopFlag;
use phalanx_run::{Doing, JoinTicket, RunFolder, RunState};
use phalanx_trainer::config::Resolved;
use phalanx_trainer::engine::{self, RunEnd, Task, World};

/// How often a process that waits says so, and looks whether it is asked in.
const POLL: Duration = Duration::from_millis(100);

/// How long a run may say that it trains whose rank 0 is gone: another one may be about to take over.
const SUCCESSION: Duration = Duration::from_secs(30);

/// How often a process that was asked in and has met nobody waits again.
const ATTEMPTS: usize = 8;

/// Takes part in a run that goes on, as one more rank, or waits as a spare until there is room. Ctrl-C leaves it again.
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
    // A task of a job leaves before that job's time is up, whatever time the others have.
    stop_before_the_end(&leave, Duration::from_secs(resolved.config.checkpoint.limit_margin), false)?;
    // A run that begins clears away what waited for an earlier attempt.
    while !folder.state().exists() {
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
    let run = Joining { task: &task, folder: &folder, resolved: &resolved, stop: &stop, leave: &leave };
    match run.take_part(ticket, false, KeptOutput::default())? {
        Some(RunEnd::Left) => out("left; the others go on"),
        Some(_) => out("the run has ended"),
        None => out("the run has ended, or needs no more ranks"),
    }
    Ok(())
}

/// A process that takes part in a run that others have begun.
pub(super) struct Joining<'a> {
    pub(super) task: &'a Task,
    pub(super) folder: &'a RunFolder,
    pub(super) resolved: &'a Resolved,
    /// Raised when all ranks are to stop.
    pub(super) stop: &'a StopFlag,
    /// Raised when this rank alone is to leave.
    pub(super) leave: &'a StopFlag,
}

impl Joining<'_> {
    /// Waits to be asked in, and trains as a rank until the run has ended or the rank leaves; `None` if it was never asked in.
    pub(super) fn take_part(
        &self,
        mut ticket: JoinTicket,
        quiet: bool,
        kept: KeptOutput,
    ) -> Result<Option<RunEnd>, CliError> {
        let number = ticket.number();
        rank::prepare(self.folder, self.resolved, number)?;
        // What cannot be had here is noticed before the others wait for this rank.
        engine::rehearse(self.task, &self.resolved.config).map_err(CliError::failed)?;
        let mut kept = Some(kept);
        for _ in 0..ATTEMPTS {
            let Some(world) = self.wait(&mut ticket)? else { return Ok(None) };
            let world = world.joining(number).leaving_on(self.leave);
            let observer = rank::observer(quiet, false, kept.take().unwrap_or_default());
            let trained = engine::train(self.task, self.folder, self.resolved, &world, self.stop, observer);
            match trained {
                Ok(end) => return Ok(Some(end)),
                Err(error) if error.is_unmet() => {
                    tracing::warn!("{error}; this rank waits to be asked in again");
                }
                Err(error) => {
                    rank::report(self.folder, number, &error);
                    return Err(CliError::failed(error));
                }
            }
        }
        Err(CliError::Usage(format!("rank {number} was asked in {ATTEMPTS} times, and met nobody")))
    }

    /// Waits until this process is asked in: its place. `None` if the run has ended, or the process is told to go.
    fn wait(&self, ticket: &mut JoinTicket) -> Result<Option<World>, CliError> {
        let mut gone: Option<Instant> = None;
        loop {
            if self.leave.is_raised() || self.stop.is_raised() {
                ticket.stop_waiting();
                return Ok(None);
            }
            if let Some(invitation) = ticket.wait().map_err(CliError::failed)? {
                ticket.stop_waiting();
                return Ok(Some(
                    engine::invited_world(&invitation, &self.folder.secret()).map_err(CliError::failed)?,
                ));
            }
            let state = RunState::read(&self.folder.state()).ok();
            let has_ended =
                state.as_ref().is_some_and(|state| matches!(state.doing, Doing::Ended | Doing::Failed));
            if state.is_some_and(|state| state.is_alive() == Some(false)) {
                gone.get_or_insert_with(Instant::now);
            } else {
                gone = None;
            }
            if has_ended || gone.is_some_and(|since| since.elapsed() > SUCCESSION) {
                ticket.stop_waiting();
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }
}
