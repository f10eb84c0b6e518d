//! Being one rank of a run, whoever started it.

use std::path::{Path, PathBuf};

use clap::Args;

use super::train::{count_interrupts, follow, write_config};
use super::{CliError, log, task_of, with_causes};
use crate::Program;
use crate::config::Resolved;
use crate::console::{Console, err};
use crate::engine::{self, Observer, ReplicaFailure, Silent, Task, TrainError, World};
use crate::launch::{FailureReport, Leash, REPLICA_THREAD, RankFailure, StopFlag};
use crate::run::RunFolder;

/// Runs one rank of a run whose folder exists; `phalanx train` starts these.
#[derive(Debug, Args)]
pub(super) struct RankArgs {
    /// The run's folder.
    folder: PathBuf,
}

/// A rank on the leash of a supervisor.
pub(super) fn run(program: &Program, args: &RankArgs) -> Result<(), CliError> {
    let stop = StopFlag::default();
    if !Leash::follow(&stop) {
        return Err(CliError::Usage("`rank` is started by `phalanx train`".to_owned()));
    }
    let folder = RunFolder::open(&args.folder).map_err(CliError::failed)?;
    let world = engine::launcher_world().map_err(CliError::failed)?;
    let world = world.ok_or_else(|| CliError::Usage("`rank` finds no launcher's environment".to_owned()))?;
    let resolved = program.catalogue().resolve_run(&folder.config())?;
    let task = task_of(program, &resolved.config)?;
    // The supervisor tells the failure, from the report that is written in here.
    train(task, &folder, &resolved, &world, &stop).map_err(|_| CliError::Reported)
}

/// All ranks in the process that the user started: the only one, or replicas on threads.
pub(super) fn run_here(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    stop: &StopFlag,
) -> Result<(), CliError> {
    let ranks = resolved.config.train.ranks;
    if ranks == 1 {
        return train(task, folder, resolved, &World::alone(), stop);
    }
    for rank in 0..ranks {
        // A report of an earlier attempt in the same folder must not be taken for this one's.
        let _ = std::fs::remove_file(FailureReport::path(&folder.logs(), rank));
    }
    prepare(folder, 0)?;
    let outcome = engine::train_replicas(task, folder, resolved, stop, Box::new(Console::new()));
    outcome.map_err(|ReplicaFailure { rank, error }| {
        let message = report(folder, rank, &error);
        CliError::failed(RankFailure { rank, message, log: folder.log(0) })
    })
}

/// A rank that torchrun, SLURM or MPI has started.
pub(super) fn run_launched(
    task: &Task,
    resolved: &Resolved,
    existing: Option<RunFolder>,
    out: Option<&Path>,
    world: &World,
) -> Result<(), CliError> {
    let folder = match (existing, out) {
        (Some(folder), _) => folder,
        // The ranks cannot agree on a name with the time in it before they are connected.
        (None, None) => {
            return Err(CliError::Usage(
                "a run that a launcher starts needs its folder: --out DIR".to_owned(),
            ));
        }
        (None, Some(out)) if world.rank() == 0 => {
            let folder =
                RunFolder::create(Some(out), Path::new(""), &resolved.name).map_err(CliError::failed)?;
            write_config(&folder, resolved)?;
            folder
        }
        (None, Some(out)) => RunFolder::join(out).map_err(CliError::failed)?,
    };
    let stop = StopFlag::default();
    follow(&count_interrupts()?, &stop);
    train(task, &folder, resolved, world, &stop)
}

/// Trains as one rank and reports a failure into the run's folder.
fn train(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    world: &World,
    stop: &StopFlag,
) -> Result<(), CliError> {
    let rank = world.rank();
    prepare(folder, rank)?;
    let observer: Box<dyn Observer> = if rank == 0 { Box::new(Console::new()) } else { Box::new(Silent) };
    let outcome = engine::train(task, folder, resolved, world, stop, observer);
    outcome.map_err(|error| {
        report(folder, rank, &error);
        CliError::failed(error)
    })
}

/// Sends this process's log, and what is left of a panic, into the run's folder.
fn prepare(folder: &RunFolder, rank: usize) -> Result<(), CliError> {
    log::to_file(&folder.log(rank))?;
    let quiet = std::env::var_os(crate::launch::SUPERVISED).is_some();
    FailureReport::on_panic(&folder.logs(), rank, move |message| {
        tracing::error!("{message}");
        // A replica's panic becomes its error, which is told in its turn.
        let replica = std::thread::current().name().is_some_and(|name| name.starts_with(REPLICA_THREAD));
        if !quiet && !replica {
            err(&format!("error: rank {rank} {message}"));
        }
    });
    Ok(())
}

/// Writes down why a rank has failed, in the log and for a supervisor; the message.
fn report(folder: &RunFolder, rank: usize, error: &TrainError) -> String {
    let message = with_causes(error);
    tracing::error!("{message}");
    let report = FailureReport::now(rank, message.clone(), error.is_consequence());
    if let Err(failed) = report.write(&folder.logs()) {
        tracing::error!("the failure could not be reported: {failed}");
    }
    message
}
