//! Joins a running training as an additional rank.

use std::time::{Duration, Instant};

use phalanx_config::Resolved;
use phalanx_run::{JoinTicket, RunActivity, RunFolder, RunState, StopFlag};
use phalanx_trainer::engine::{self, RunEnd, Task, World};

use super::error::CliError;
use super::process;
use crate::console::OriginalOutput;

/// The interval at which a waiting process renews its ticket and looks for an invitation.
pub(super) const POLL: Duration = Duration::from_millis(100);

/// The time for which a run without a live rank 0 counts as training: another rank may be about to take over.
const SUCCESSION: Duration = Duration::from_secs(30);

/// The number of times that an invited process that met no rank waits again.
const ATTEMPTS: usize = 8;

/// A process that joins a running training.
pub(super) struct JoiningProcess<'a> {
    pub(super) task: &'a Task,
    pub(super) folder: &'a RunFolder,
    pub(super) resolved: &'a Resolved,
    /// Raised when all ranks are to stop.
    pub(super) stop: &'a StopFlag,
    /// Raised when this rank alone is to leave.
    pub(super) leave: &'a StopFlag,
    /// True if a user has started the process and is told when it takes part.
    pub(super) announces: bool,
}

impl JoiningProcess<'_> {
    /// Waits for an invitation, and trains as a rank until the run ends or the rank leaves. Returns `None` if no invitation came.
    pub(super) fn take_part(
        &self,
        mut ticket: JoinTicket,
        display: process::Display,
        kept: OriginalOutput,
    ) -> Result<Option<RunEnd>, CliError> {
        let number = ticket.number();
        process::prepare(self.folder, self.resolved, number)?;
        // A missing data set or device is an error before the others wait for this rank.
        engine::rehearse(self.task, &self.resolved.config).map_err(CliError::failed)?;
        let mut kept = Some(kept);
        for _ in 0..ATTEMPTS {
            let Some(world) = self.wait(&mut ticket)? else { return Ok(None) };
            let world = world.joining(number).leaving_on(self.leave);
            let observer = match self.announces {
                true => process::joining_observer(number),
                false => process::observer(display, false, kept.take().unwrap_or_default()),
            };
            let trained = engine::train(self.task, self.folder, self.resolved, &world, self.stop, observer);
            match trained {
                Ok(end) => return Ok(Some(end)),
                Err(error) if error.is_unmet() => {
                    tracing::warn!("{error}; this rank waits for another invitation");
                }
                Err(error) => {
                    process::report(self.folder, number, &error);
                    return Err(CliError::failed(error));
                }
            }
        }
        Err(CliError::Usage(format!("rank {number} was invited {ATTEMPTS} times, and met no other rank")))
    }

    /// Waits for an invitation and returns the world to join. Returns `None` if the run has ended, or after a request to stop or leave.
    fn wait(&self, ticket: &mut JoinTicket) -> Result<Option<World>, CliError> {
        let mut gone: Option<Instant> = None;
        loop {
            if self.leave.is_raised() || self.stop.is_raised() {
                ticket.stop_waiting();
                return Ok(None);
            }
            if let Some(invitation) = ticket.poll().map_err(CliError::failed)? {
                ticket.stop_waiting();
                return Ok(Some(
                    engine::invited_world(&invitation, &self.folder.secret()).map_err(CliError::failed)?,
                ));
            }
            // While a resumption is proposed, the state is that of an earlier attempt.
            let is_current = !self.folder.proposed_config().exists();
            let state = RunState::read(&self.folder.state()).ok().filter(|_| is_current);
            let has_ended = state
                .as_ref()
                .is_some_and(|state| matches!(state.doing, RunActivity::Ended | RunActivity::Failed));
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
