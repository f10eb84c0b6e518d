//! A rank in this process: its log, its failure report, and the loop.

use std::time::Duration;

use phalanx_collectives::{FlightRecord, write_flight_records};
use phalanx_config::Resolved;
use phalanx_launch::{ABORTED, RankFailure};
use phalanx_run::{FailureReport, REPLICA_THREAD, RunFolder, StopFlag, Summary};
use phalanx_trainer::engine::{
    self, Event, Observer, ReplicaFailure, RunEnd, Started, StepReport, Task, TrainError, World,
};

use super::error::{CliError, with_causes};
use super::log;
use crate::console::{Console, JsonLines, OriginalOutput, Verbosity, color_option, err, format};

/// The time that a failing rank takes at most to write its flight record.
const RECORDING: Duration = Duration::from_secs(2);

/// The form in which a training is shown to its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Display {
    /// A table, a progress bar or lines of steps, and the end of the run.
    Console,
    /// JSON lines.
    Json,
    /// Warnings and errors only.
    Quiet,
}

impl Display {
    /// Returns the form that the options of this process choose.
    pub(super) fn chosen(json: bool) -> Self {
        match (json, Verbosity::get()) {
            (true, _) => Self::Json,
            (false, Verbosity::Quiet) => Self::Quiet,
            (false, _) => Self::Console,
        }
    }

    /// Returns the options by which a process of this program has the same form.
    pub(super) fn options(self) -> Vec<String> {
        let json = (self == Self::Json).then_some("--json");
        let verbosity = if self == Self::Quiet { Verbosity::Quiet } else { Verbosity::get() };
        let options = json.into_iter().chain(verbosity.option()).map(str::to_owned);
        options.chain(color_option()).collect()
    }
}

/// Returns the observer of a rank. Rank 0 prints from the beginning, the others when they take over, to the output that
/// they have `kept`.
pub(super) fn observer(display: Display, is_first: bool, kept: OriginalOutput) -> Box<dyn Observer> {
    let console: Option<Box<dyn Observer>> = match (display, is_first) {
        (Display::Quiet, _) => None,
        (Display::Console, true) => Some(Box::new(Console::new())),
        (Display::Console, false) => Some(Box::new(Console::plain(kept.into_file()))),
        (Display::Json, true) => Some(Box::new(JsonLines::default())),
        (Display::Json, false) => Some(Box::new(JsonLines::new(kept.into_file()))),
    };
    Box::new(LogObserver { console, speaks: is_first, announces: None })
}

/// Returns the observer of a process that a user has started to join a run. It prints from which step on the rank takes part.
pub(super) fn joining_observer(number: usize) -> Box<dyn Observer> {
    let console: Option<Box<dyn Observer>> = Some(Box::new(Console::plain(None)));
    Box::new(LogObserver { console, speaks: false, announces: Some(number) })
}

/// Writes into the log what happens besides steps, and shows all on the console if there is one; nothing before its rank is the
/// one that speaks for all.
struct LogObserver {
    console: Option<Box<dyn Observer>>,
    speaks: bool,
    /// The number of a rank whose joining is printed although it does not speak for all.
    announces: Option<usize>,
}

impl LogObserver {
    fn console(&mut self) -> Option<&mut (dyn Observer + 'static)> {
        self.console.as_deref_mut().filter(|_| self.speaks)
    }
}

impl Observer for LogObserver {
    fn started(&mut self, started: &Started) {
        if let Some(console) = self.console() {
            console.started(started);
        }
    }

    fn take_over(&mut self, _: &Started) {
        // The reader of the output has seen the start already.
        self.speaks = true;
    }

    fn step(&mut self, report: &StepReport, logged: bool) {
        if let Some(console) = self.console() {
            console.step(report, logged);
        }
    }

    fn event(&mut self, event: &Event) {
        if !self.speaks {
            let is_own = matches!(event, Event::Joined { rank, .. } if Some(*rank) == self.announces);
            if let Some(console) = self.console.as_deref_mut().filter(|_| is_own) {
                console.event(event);
            }
            return;
        }
        // The training itself logs the others.
        if let Event::Evaluated { .. } | Event::Saved { .. } | Event::Sampled { .. } = event {
            tracing::info!("{}", format::event(event));
        }
        match (self.console(), event) {
            (Some(console), _) => console.event(event),
            (None, Event::Warned { .. } | Event::Died { .. }) => err(&format::event(event)),
            (None, _) => {}
        }
    }

    fn finished(&mut self, summary: &Summary) {
        if let Some(console) = self.console() {
            console.finished(summary);
        }
    }
}

/// All ranks in this process: the only one, or replicas on threads.
pub(super) fn run_here(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    stop: &StopFlag,
    observer: Box<dyn Observer>,
) -> Result<(), CliError> {
    let ranks = resolved.config.world_size();
    if ranks == 1 {
        return train(task, folder, resolved, &World::alone(), stop, || observer, || ABORTED).map(drop);
    }
    for rank in 0..ranks {
        // A report of an earlier attempt in the same folder must not be taken for this one's.
        let _ = std::fs::remove_file(FailureReport::path(&folder.logs(), rank));
    }
    prepare(folder, resolved, 0)?;
    let outcome = engine::train_replicas(task, folder, resolved, stop, observer);
    outcome.map_err(|ReplicaFailure { rank, error }| {
        let message = report(folder, rank, &error);
        CliError::failed(RankFailure { rank, message, log: folder.log(0), blamed: Vec::new() })
    })
}

/// Trains as one rank and reports a failure into the run's folder. A rank that was told to end before it had met the others is
/// no failure; it ends with the code that `told_code` gives.
pub(super) fn train(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    world: &World,
    stop: &StopFlag,
    observer: impl FnOnce() -> Box<dyn Observer>,
    told_code: impl Fn() -> u8,
) -> Result<RunEnd, CliError> {
    let rank = world.rank();
    prepare(folder, resolved, rank).inspect_err(|error| {
        // The rank has no log. Its supervisor reads the report.
        let _ = FailureReport::now(rank, error.to_string(), false).write(&folder.logs());
    })?;
    engine::train(task, folder, resolved, world, stop, observer()).map_err(|error| {
        if error.is_cancelled() {
            tracing::info!("{error}");
            return cancelled_error(rank, &error, told_code());
        }
        report(folder, rank, &error);
        CliError::failed(error)
    })
}

/// Returns the result of a rank that was stopped before the rendezvous.
pub(super) fn cancelled_error(rank: usize, error: &TrainError, code: u8) -> CliError {
    CliError::Ended { message: format!("rank {rank}: {error}; nothing was trained"), code }
}

/// Sends this process's log, and what is left of a panic, into the run's folder.
pub(super) fn prepare(folder: &RunFolder, resolved: &Resolved, rank: usize) -> Result<(), CliError> {
    log::to_file(&folder.log(rank), !resolved.config.log.trace.is_none())?;
    // A record of an earlier attempt in the same folder must not be taken for this one's.
    let _ = std::fs::remove_file(FlightRecord::path(&folder.logs(), rank));
    let quiet = std::env::var_os(phalanx_run::SUPERVISED).is_some();
    FailureReport::on_panic(&folder.logs(), rank, move |message, ends| {
        tracing::error!("{message}");
        if ends {
            write_flight_records(RECORDING);
        }
        // A replica's panic becomes its error, which is told in its turn.
        let replica = std::thread::current().name().is_some_and(|name| name.starts_with(REPLICA_THREAD));
        if !quiet && !replica {
            err(&format!("error: rank {rank} {message}"));
        }
    });
    Ok(())
}

/// Writes down why a rank has failed, in the log and for a supervisor; the message.
pub(super) fn report(folder: &RunFolder, rank: usize, error: &TrainError) -> String {
    let message = with_causes(error);
    tracing::error!("{message}");
    // A rank that ends by its own error may be faster than the thread that writes its record.
    write_flight_records(RECORDING);
    let report = FailureReport::now(rank, message.clone(), error.is_consequence());
    let report = FailureReport { left_out: error.is_left_out(), blamed: error.blamed().to_vec(), ..report };
    if let Err(failed) = report.write(&folder.logs()) {
        tracing::error!("the failure could not be reported: {failed}");
        // On a full disk neither a log nor a report remains.
        err(&format!("error: rank {rank}: {message} (its report could not be written: {failed})"));
    }
    message
}
