//! Trainings whose ranks this process starts, or is.

use std::path::{Path, PathBuf};
use std::time::Duration;

use phalanx_collectives::FlightRecord;
use phalanx_config::{Config, Resolved};
use phalanx_launch::{Replacements, Supervisor, SupervisorOutcome, remove_stale_secret};
use phalanx_report::dashboard;
use phalanx_run::{JoinTicket, LockedFolder, RunError, RunFolder, RunLock, RunStart, StopFlag, Summary};
use phalanx_trainer::engine::{self, FirstRun, RunEnd, Task};
use toml::Value;

use super::changes::propose;
use super::error::CliError;
use super::hosts::SshHosts;
use super::interrupts::{Interrupts, announce, stop_before_the_end};
use super::process::{self, Display};
use super::resolve::{RUNS, as_argument, first_folder, task_of};
use super::train_args::TrainArgs;
use super::tui;
use crate::Program;
use crate::console::{OriginalOutput, err, note};

/// Returns the exit of a run's end: the code of `--interrupted-code` if it was interrupted.
pub(super) fn ended(args: &TrainArgs, end: RunEnd) -> Result<(), CliError> {
    match (end, args.interrupted_code) {
        (RunEnd::Finished | RunEnd::Left, _) | (_, 0) => Ok(()),
        (RunEnd::Interrupted, code) => Err(CliError::Ended { message: String::new(), code }),
    }
}

/// A training that this process starts.
pub(super) struct LocalTraining<'a> {
    pub(super) program: &'a Program,
    pub(super) args: &'a TrainArgs,
    pub(super) task: &'a Task,
    /// The hosts, if ranks are started by ssh.
    pub(super) by_host: Option<&'a SshHosts>,
    /// The form in which it is shown, if not by a dashboard.
    pub(super) display: Display,
}

/// The means by which the ranks of a run are started and stopped.
struct Ranks<'a> {
    program: &'a Program,
    interrupts: Interrupts,
    stop: StopFlag,
    /// True if the dashboard is shown.
    tui: bool,
    display: Display,
    by_host: Option<&'a SshHosts>,
}

impl LocalTraining<'_> {
    /// Trains the run, and before it the run that it builds on, if that is not finished.
    pub(super) fn run(&self, resolved: Resolved, existing: Option<RunFolder>) -> Result<(), CliError> {
        let is_new = existing.is_none();
        let locked = self.lock(existing, &resolved.name).map_err(CliError::failed)?;
        self.run_in(locked, is_new, resolved)
    }

    /// Trains the run of a folder: a new one, or one that exists.
    pub(super) fn run_in(
        &self,
        LockedFolder { folder, lock }: LockedFolder,
        is_new: bool,
        resolved: Resolved,
    ) -> Result<(), CliError> {
        let first = self.task.first_run(&resolved.config);
        // Ranks that outlive this process for a moment still write.
        lock.share_with_children().map_err(CliError::failed)?;
        remove_stale_secret(&folder.secret()).map_err(CliError::failed)?;
        if self.args.start.restart {
            // The record must not move for a configuration that cannot be trained.
            engine::rehearse(self.task, &resolved.config).map_err(CliError::failed)?;
            let aside = folder.set_aside().map_err(CliError::failed)?;
            err(&format!("starts again at step 1; the record so far is in {}", aside.display()));
        }
        let resolved = match &first {
            Some(first) => after_first(resolved, &folder, first, self.task.first_key().unwrap_or_default())?,
            None => resolved,
        };
        match is_new {
            true => resolved.write(&folder.config()).map_err(CliError::failed)?,
            false => propose(self.program, &folder, &resolved, self.args.start.reset)?,
        }
        folder.propose_start(&RunStart::now()).map_err(CliError::failed)?;
        let ranks = self.ranks(&resolved.config)?;
        if !self.run_first(&folder, &ranks)? {
            err("stopped before the run that builds on this one has begun; go on with --resume");
            return ended(self.args, RunEnd::Interrupted);
        }
        ranks.run(&folder, &resolved).inspect_err(|_| {
            // The same command can be given again once its cause is mended. This error is the one that counts.
            if is_new {
                let _ = folder.release_unless_started();
            } else {
                folder.withdraw_proposal();
            }
        })?;
        let is_interrupted =
            Summary::read(&folder.summary()).is_ok_and(|summary| summary.status == "interrupted");
        ended(self.args, if is_interrupted { RunEnd::Interrupted } else { RunEnd::Finished })
    }

    /// Creates the folder of a new run, or takes the existing one, and locks it.
    fn lock(&self, existing: Option<RunFolder>, name: &str) -> Result<LockedFolder, RunError> {
        match existing {
            Some(folder) => RunLock::take(&folder).map(|lock| LockedFolder { folder, lock }),
            None => RunFolder::create_locked(self.args.out.as_deref(), Path::new(RUNS), name),
        }
    }

    /// Begins to listen for signals, and for the end of the job's time.
    fn ranks(&self, config: &Config) -> Result<Ranks<'_>, CliError> {
        let tui = self.args.show.tui && dashboard::is_terminal();
        let stop = StopFlag::default();
        let is_alone = config.world_size() == 1 && config.elastic().is_none();
        let margin = Duration::from_secs(config.checkpoint.limit_margin);
        // In a job, ranks that a launcher starts watch the time themselves.
        let interrupts = if !tui && (is_alone || engine::in_one_process(config)) {
            stop_before_the_end(&stop, margin, true)?;
            Interrupts::stop_first(&stop)?
        } else {
            let interrupts = Interrupts::listen()?;
            interrupts.heed_the_end(margin)?;
            interrupts
        };
        let display = if tui { Display::Quiet } else { self.display };
        Ok(Ranks { program: self.program, interrupts, stop, tui, display, by_host: self.by_host })
    }

    /// Trains the run that this one builds on, if there is one that is not finished. Returns false if it was stopped: by a signal,
    /// by the end of the job's time, or by a key.
    fn run_first(&self, folder: &RunFolder, ranks: &Ranks<'_>) -> Result<bool, CliError> {
        let place = first_folder(folder);
        if !place.join("config.toml").is_file() || is_finished(&place) {
            return Ok(true);
        }
        let of_first = RunFolder::open(&place).map_err(CliError::failed)?;
        let lock = RunLock::take(&of_first).map_err(CliError::failed)?;
        lock.share_with_children().map_err(CliError::failed)?;
        let resolved = self.program.catalogue().resolve_run(&of_first.config())?;
        note(&format!("before: {} in {}", resolved.config.model.kind, place.display()));
        ranks.run(&of_first, &resolved)?;
        Ok(ranks.interrupts.count() == 0 && !ranks.stop.is_raised() && is_finished(&place))
    }
}

/// Returns true if the run in a folder has finished.
fn is_finished(folder: &Path) -> bool {
    let summary = RunFolder::open(folder).ok().and_then(|folder| Summary::read(&folder.summary()).ok());
    summary.is_some_and(|summary| summary.status == "finished")
}

/// Creates the folder of the run that this one builds on, and sets the key that names it.
fn after_first(
    mut resolved: Resolved,
    folder: &RunFolder,
    first: &FirstRun,
    key: &str,
) -> Result<Resolved, CliError> {
    let place = std::path::absolute(first_folder(folder)).map_err(CliError::failed)?;
    if !place.join("config.toml").is_file() {
        let before = resolved.catalogue().resolve(Some(&first.preset), &first.sets)?;
        before.validate()?;
        let made =
            RunFolder::create(Some(&place), Path::new(RUNS), &before.name).map_err(CliError::failed)?;
        before.write(&made.config()).map_err(CliError::failed)?;
    }
    let option = format!("the run of {} before", first.preset);
    resolved.set_value(&option, key, Value::String(place.display().to_string()))?;
    Ok(resolved)
}

impl Ranks<'_> {
    /// Trains the run in a folder until it is finished or interrupted.
    fn run(&self, folder: &RunFolder, resolved: &Resolved) -> Result<(), CliError> {
        let config = &resolved.config;
        let in_one_process = engine::in_one_process(config);
        let is_alone = config.world_size() == 1 && config.elastic().is_none();
        if !self.tui && self.by_host.is_none() && (is_alone || in_one_process) {
            let task = task_of(self.program, config)?;
            let observer = process::observer(self.display, true, OriginalOutput::default());
            return process::run_here(&task, folder, resolved, &self.stop, observer);
        }
        let ranks = if in_one_process { 1 } else { config.world_size() };
        let ended = self.supervise(folder, config, ranks).inspect_err(|_| {
            if (0..ranks).any(|rank| FlightRecord::path(&folder.logs(), rank).exists()) {
                let (program, path) = (self.program.name(), folder.path().display());
                err(&format!("what each rank did: {program} diagnose {path}"));
            }
        });
        let message = match ended? {
            SupervisorOutcome::Finished | SupervisorOutcome::Interrupted => return Ok(()),
            SupervisorOutcome::BeforeMeeting => {
                "told to end while the ranks looked for each other; nothing was trained"
            }
            SupervisorOutcome::Aborted => "aborted",
        };
        Err(CliError::Ended { message: message.to_owned(), code: self.interrupts.exit_code() })
    }

    /// Starts `ranks` processes and watches them to their end.
    fn supervise(
        &self,
        folder: &RunFolder,
        config: &Config,
        ranks: usize,
    ) -> Result<SupervisorOutcome, CliError> {
        let executable = std::env::current_exe().map_err(CliError::failed)?;
        let told = std::cell::Cell::new(false);
        let interrupted = || {
            let count = self.interrupts.count();
            if count == 1 && !told.replace(true) {
                announce();
            }
            count
        };
        if config.elastic().is_some() {
            clear_joins(folder)?;
        }
        if let Some(by_host) = self.by_host {
            let supervisor =
                by_host.supervisor(&executable, folder, config.sync.min_workers > 0, self.display)?;
            return supervisor.run(interrupted).map_err(CliError::failed);
        }
        let supervisor = self.supervisor(executable, folder, config, ranks);
        let ended = match self.tui {
            true => tui::supervise(&supervisor, folder, self.program.name(), &self.interrupts),
            false => supervisor.run(interrupted),
        };
        ended.map_err(CliError::failed)
    }

    /// The supervisor of ranks on this host.
    fn supervisor(
        &self,
        executable: PathBuf,
        folder: &RunFolder,
        config: &Config,
        ranks: usize,
    ) -> Supervisor {
        let elastic = config.elastic();
        let path = as_argument(folder.path());
        let mut arguments = vec!["rank".to_owned(), path.display().to_string()];
        arguments.extend(self.display.options());
        let sync = &config.sync;
        let least = (sync.min_workers > 0).then_some(sync.min_workers + sync.servers);
        // In an elastic world the ranks themselves end the run if too few are left, after they have saved.
        let least = least.or(elastic.is_some().then_some(1));
        let joins = folder.joins();
        let claim = move || {
            let ticket = JoinTicket::claim(&joins, ranks);
            ticket.map(|ticket| ticket.number()).map_err(|error| error.to_string())
        };
        Supervisor {
            program: executable,
            arguments,
            ranks,
            logs: folder.logs(),
            least,
            replacements: Replacements::new(config.elastic.respawn, claim),
            secret_file: elastic.is_some().then(|| folder.secret()),
            quiet: self.tui,
            place: None,
            interrupted_code: None,
        }
    }
}

/// Removes the tickets of an earlier attempt, whose processes see by it that the attempt is over.
fn clear_joins(folder: &RunFolder) -> Result<(), CliError> {
    let joins = folder.joins();
    if joins.exists() {
        std::fs::remove_dir_all(&joins).map_err(CliError::failed)?;
    }
    Ok(())
}
