//! `phalanx rank`: runs one rank of a run under a supervisor.

use std::path::PathBuf;

use clap::Args;
use phalanx_launch::{ABORTED, KEEPS_OUTPUT, ParentPipe};
use phalanx_run::{FailureReport, JoinTicket, RunFolder, StopFlag};
use phalanx_trainer::engine;

use super::error::{CliError, with_causes};
use super::interrupts::Interrupts;
use super::joining::JoiningProcess;
use super::process::{Display, observer, run_here, train};
use super::resolve::{attempted_config, task_of};
use crate::Program;
use crate::console::{OriginalOutput, err};

/// Run one rank of an existing run. `phalanx train` starts these processes.
#[derive(Debug, Args)]
pub(super) struct RankArgs {
    /// The run's folder.
    folder: PathBuf,
    /// Print events as JSON lines.
    #[arg(long)]
    json: bool,
    /// Join the running ranks under this number.
    #[arg(long)]
    join: Option<usize>,
}

/// Runs a rank that a supervisor has started.
pub(super) fn run(program: &Program, args: &RankArgs) -> Result<(), CliError> {
    let stop = StopFlag::default();
    let pipe = ParentPipe::follow(&stop).map_err(CliError::failed)?;
    let pipe = pipe.ok_or_else(|| CliError::Usage("`rank` is started by `phalanx train`".to_owned()))?;
    let folder = RunFolder::open(&args.folder).map_err(CliError::failed)?;
    let resolved = program.catalogue().resolve_run(&attempted_config(&folder))?;
    let task = task_of(program, &resolved.config)?;
    let keep_output = |rank| match std::env::var_os(KEEPS_OUTPUT) {
        Some(_) => OriginalOutput::redirect(&folder.log(rank)).map_err(CliError::failed),
        None => Ok(OriginalOutput::default()),
    };
    let leave = StopFlag::default();
    let display = Display::chosen(args.json);
    if resolved.config.elastic().is_some() {
        // A signal to one rank concerns only this rank.
        let flag = leave.clone();
        Interrupts::leave_first(&flag)?;
    } else {
        // `systemctl stop`, and job scripts without `srun`, signal all processes at once.
        Interrupts::stop_quietly(&stop)?;
    }
    if let Some(number) = args.join {
        let joining = JoiningProcess {
            task: &task,
            folder: &folder,
            resolved: &resolved,
            stop: &stop,
            leave: &leave,
            announces: false,
        };
        let ticket = JoinTicket::of(&folder.joins(), number);
        return match joining.take_part(ticket, display, keep_output(number)?) {
            Ok(_) => Ok(()),
            Err(error) => {
                let _ = FailureReport::now(number, with_causes(&error), true).write(&folder.logs());
                Err(CliError::Reported)
            }
        };
    }
    let world = engine::launcher_world().map_err(CliError::failed)?;
    let world = world.ok_or_else(|| CliError::Usage("`rank` finds no launcher's environment".to_owned()))?;
    let world = world.with_secret(pipe.secret).leaving_on(&leave).reporting_waits(err);
    let kept = keep_output(world.rank())?;
    let is_first = world.rank() == 0;
    let observer = || observer(display, is_first, kept);
    if engine::in_one_process(&resolved.config) {
        // The supervisor knows only this process, so it reports for all ranks.
        return run_here(&task, &folder, &resolved, &stop, observer()).map_err(|error| {
            let _ = FailureReport::now(0, error.to_string(), false).write(&folder.logs());
            CliError::Reported
        });
    }
    // The supervisor prints the failure from the report, or that the rank was stopped.
    match train(&task, &folder, &resolved, &world, &stop, observer, || ABORTED) {
        Err(CliError::Ended { code, .. }) => Err(CliError::Ended { message: String::new(), code }),
        outcome => outcome.map(drop).map_err(|_| CliError::Reported),
    }
}
