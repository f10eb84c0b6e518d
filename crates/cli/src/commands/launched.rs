//! Trains as a rank that torchrun, SLURM or MPI has started, with a fixed or an elastic number of ranks.

use std::path::Path;
use std::time::Duration;

use super::changes::propose;
use super::error::CliError;
use super::interrupts::{Interrupts, stop_before_the_end};
use super::process::{Display, cancelled_error, observer, train};
use super::resolve::RUNS;
use super::train_args::TrainArgs;
use crate::Program;
use crate::console::{OriginalOutput, err};
use phalanx_config::{Config, Resolved};
use phalanx_launch::cluster::{RankSurvival, Torchrun, survival};
use phalanx_launch::{ABORTED, ParentPipe, remove_stale_secret};
use phalanx_run::StopFlag;
use phalanx_run::{JoinTicket, RunError, RunFolder, RunLock, RunStart};
use phalanx_trainer::engine::{self, FirstRun, RunEnd, Task, TrainError, World};

/// Refuses a training that begins with another one.
pub(super) fn check_first(task: &Task, config: &Config) -> Result<(), CliError> {
    let Some(FirstRun { preset, .. }) = task.first_run(config) else { return Ok(()) };
    let key = task.first_key().unwrap_or_default();
    Err(CliError::Usage(format!(
        "{key} names no run; ranks that a launcher has started train one run: train {preset} before, and set {key}"
    )))
}

/// Refuses a world that changes where the launcher is known to end all ranks when one dies, and says what may make it do so.
pub(super) fn check_elastic(resolved: &Resolved, world: &World) -> Result<(), CliError> {
    if resolved.config.elastic().is_none() {
        return Ok(());
    }
    match survival(&|name| std::env::var(name).ok()) {
        RankSurvival::Never { launcher, why } => {
            return Err(CliError::Usage(format!("elastic.min: {launcher} has started this rank, and {why}")));
        }
        RankSurvival::Doubtful(problem) if world.rank() == 0 => {
            tracing::warn!("{problem}");
            err(&format!("warning: {problem}"));
        }
        RankSurvival::Doubtful(_) | RankSurvival::Likely => {}
    }
    Ok(())
}

/// Trains as a rank that a launcher has started. A signal has all ranks finish the step and save, also where the world may change: a
/// scheduler that takes a job away tells each of its ranks at the same moment.
pub(super) fn run(
    program: &Program,
    task: &Task,
    resolved: &Resolved,
    existing: Option<RunFolder>,
    args: &TrainArgs,
    world: &World,
) -> Result<RunEnd, CliError> {
    let stop = StopFlag::default();
    // The parent of a host's ranks passes its signals on to them.
    let pipe = ParentPipe::follow(&stop).map_err(CliError::failed)?;
    let is_supervised = pipe.is_some();
    let world = &world.clone().with_secret(pipe.and_then(|pipe| pipe.secret)).reporting_waits(err);
    world.check_secret(&resolved.config).map_err(|error| CliError::Usage(error.to_string()))?;
    let interrupts = Interrupts::stop_first(&stop)?;
    let told_code = || if is_supervised { ABORTED } else { interrupts.exit_code() };
    let is_resumed = existing.is_some();
    let folder = match existing {
        Some(folder) => folder,
        None => open_folder(resolved, args.out.as_deref(), world, &stop, told_code)?,
    };
    let (rank, config) = (world.rank(), &resolved.config);
    // Until this rank has ended.
    let _lock = (rank == 0).then(|| RunLock::take(&folder)).transpose().map_err(CliError::failed)?;
    if rank == 0 && args.start.restart {
        // The record must not move for a configuration that cannot be trained.
        engine::rehearse(task, config).map_err(CliError::failed)?;
        folder.set_aside().map_err(CliError::failed)?;
    }
    if rank == 0 && is_resumed {
        propose(program, &folder, resolved, args.start.reset)?;
    }
    if rank == 0 {
        folder.propose_start(&RunStart::now()).map_err(CliError::failed)?;
        remove_stale_secret(&folder.secret()).map_err(CliError::failed)?;
    }
    let is_elastic = config.elastic().is_some();
    if rank == 0 && is_elastic {
        open_to_newcomers(&folder, config.world_size(), world.size()).map_err(CliError::failed)?;
    }
    // Where the run goes on without rank 0, any rank may have to know.
    if rank == 0 || config.sync.min_workers > 0 || is_elastic {
        stop_before_the_end(&stop, Duration::from_secs(config.checkpoint.limit_margin), rank == 0)?;
    }
    let observer = || observer(Display::chosen(args.show.json), rank == 0, OriginalOutput::default());
    let trained = train(task, &folder, resolved, world, &stop, observer, told_code);
    if rank == 0 && trained.is_err() {
        folder.withdraw_proposal();
    }
    trained.map_err(|error| match error {
        // The supervisor prints it from the report that the rank has written.
        CliError::Failed(_) if is_supervised => CliError::Reported,
        error => error,
    })
}

/// Opens the folder of a new run, which rank 0 creates. Without `out` its name holds rank 0's time, so all ranks agree on it.
fn open_folder(
    resolved: &Resolved,
    out: Option<&Path>,
    world: &World,
    stop: &StopFlag,
    told_code: impl Fn() -> u8,
) -> Result<RunFolder, CliError> {
    let torchrun = Torchrun::of(&|name| std::env::var(name).ok());
    let create = || create_folder(resolved, out, torchrun.as_ref());
    let Some(out) = out else {
        if world.rank() == 0 && torchrun.as_ref().is_some_and(Torchrun::restarts) {
            err(
                "warning: ranks that torchrun starts again find their run by --out DIR, which is not given: they will begin another one",
            );
        }
        let name = || Ok::<_, TrainError>(create()?.path().display().to_string());
        let path = world.agree(stop, resolved.config.comm.timeout, name).map_err(|error| {
            match error.is_cancelled() {
                true => cancelled_error(world.rank(), &error, told_code()),
                false => CliError::failed(error),
            }
        })?;
        return RunFolder::join(Path::new(&path)).map_err(CliError::failed);
    };
    let folder = if world.rank() == 0 { create() } else { RunFolder::join(out) };
    folder.map_err(CliError::failed)
}

/// Creates the folder of a run, or opens it again if torchrun's agent has restarted the same command.
fn create_folder(
    resolved: &Resolved,
    out: Option<&Path>,
    torchrun: Option<&Torchrun>,
) -> Result<RunFolder, RunError> {
    if let Some(out) = out.filter(|out| torchrun.is_some_and(|torchrun| torchrun.has_begun(out))) {
        return RunFolder::open(out);
    }
    let folder = RunFolder::create(out, Path::new(RUNS), &resolved.name)?;
    if let Some(torchrun) = torchrun {
        torchrun.begin(folder.path()).map_err(RunError::io("write", folder.path()))?;
    }
    resolved.write(&folder.config())?;
    Ok(folder)
}

/// Removes the invitations of an earlier attempt in the same folder. Reserves the numbers from `configured` to `ranks`,
/// which ranks of this run have and processes that join must not get.
fn open_to_newcomers(folder: &RunFolder, configured: usize, ranks: usize) -> Result<(), RunError> {
    let joins = folder.joins();
    if joins.exists() {
        std::fs::remove_dir_all(&joins).map_err(RunError::io("remove", &joins))?;
    }
    JoinTicket::reserve(&joins, configured..ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newcomers_get_numbers_that_no_rank_has() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "x").expect("a folder");
        std::fs::create_dir_all(folder.joins().join("2")).expect("left by an earlier attempt");
        for (configured, ranks, first) in [(2, 2, 2), (2, 4, 4), (4, 2, 4)] {
            open_to_newcomers(&folder, configured, ranks).expect("opens");
            let ticket = JoinTicket::claim(&folder.joins(), configured).expect("free");
            assert_eq!(ticket.number(), first, "{configured} configured, {ranks} launched");
        }
    }
}
