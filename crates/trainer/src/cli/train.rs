//! `phalanx train`: resolves the configuration, makes or finds the run's folder, and starts the ranks.

use std::path::{Path, PathBuf};

use clap::Args;
use toml::Value;

use super::interrupts::{Interrupts, announce};
use super::{CliError, rank, task_of};
use crate::Program;
use crate::config::{Detail, Resolved};
use crate::console::out;
use crate::engine;
use crate::launch::{Ended, StopFlag, Supervisor};
use crate::run::{RunError, RunFolder, write_aside};

/// Trains a model. Ctrl-C finishes the step and leaves a checkpoint; a second one ends at once.
#[derive(Debug, Args)]
pub(super) struct TrainArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the first preset].
    config: Option<String>,
    /// Overrides a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// How many ranks train together.
    #[arg(long)]
    ranks: Option<u32>,
    /// How ranks share the work.
    #[arg(long)]
    strategy: Option<String>,
    /// The images: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Stops after this step, counted from the start of the run; the schedules stay those of the configuration.
    #[arg(long, conflicts_with = "epochs")]
    steps: Option<u32>,
    /// Stops after this epoch, counted from the start of the run; the schedules stay those of the configuration.
    #[arg(long)]
    epochs: Option<u32>,
    /// The run's folder [default: runs/NAME-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continues the run in --out, or the newest of this name, from its newest complete checkpoint.
    #[arg(long)]
    resume: bool,
    /// Says what would be done, and does not train.
    #[arg(long)]
    dry_run: bool,
}

/// Where runs go unless told otherwise.
pub(super) const RUNS: &str = "runs";

pub(super) fn run(program: &Program, args: &TrainArgs) -> Result<(), CliError> {
    let existing = match (&args.out, args.resume) {
        (Some(out), true) => Some(RunFolder::open(out).map_err(CliError::failed)?),
        (None, true) => {
            let name = args.config.as_deref().or(program.catalogue().default_preset());
            let name = name.unwrap_or(program.name());
            let name =
                Path::new(name).file_stem().map_or_else(|| name.into(), std::ffi::OsStr::to_string_lossy);
            Some(RunFolder::newest(Path::new(RUNS), &name).map_err(CliError::failed)?)
        }
        _ => None,
    };
    let resolved = configuration(program, args, existing.as_ref())?;
    let task = task_of(program, &resolved.config)?;
    if args.dry_run {
        out(resolved.to_toml(Detail::Values).trim());
        for line in engine::describe(&task, &resolved.config).map_err(CliError::failed)? {
            out(&line);
        }
        return Ok(());
    }
    let in_one_process = engine::in_one_process(&resolved.config);
    if let Some(world) = engine::launcher_world().map_err(|error| CliError::Usage(error.to_string()))? {
        world.check(&resolved.config).map_err(|error| CliError::Usage(error.to_string()))?;
        if !in_one_process {
            return rank::run_launched(&task, &resolved, existing, args.out.as_deref(), &world);
        }
    }
    let folder = match existing {
        Some(folder) => folder,
        None => RunFolder::create(args.out.as_deref(), Path::new(RUNS), &resolved.name)
            .map_err(CliError::failed)?,
    };
    write_config(&folder, &resolved).map_err(CliError::failed)?;
    let ranks = resolved.config.train.ranks;
    if ranks == 1 || in_one_process {
        let stop = StopFlag::default();
        Interrupts::stop_first(&stop)?;
        return rank::run_here(&task, &folder, &resolved, &stop);
    }
    let interrupts = Interrupts::listen()?;
    let executable = std::env::current_exe().map_err(CliError::failed)?;
    let arguments = vec!["rank".to_owned(), folder.path().display().to_string()];
    let supervisor = Supervisor { program: executable, arguments, ranks, logs: folder.logs() };
    let told = std::cell::Cell::new(false);
    let ended = supervisor.run(|| {
        let count = interrupts.count();
        if count == 1 && !told.replace(true) {
            announce();
        }
        count
    });
    let message = match ended.map_err(CliError::failed)? {
        Ended::Finished => return Ok(()),
        Ended::BeforeMeeting => "told to end while the ranks looked for each other; nothing was trained",
        Ended::Aborted => "aborted",
    };
    Err(CliError::Ended { message: message.to_owned(), code: interrupts.exit_code() })
}

/// The configuration that the arguments ask for.
fn configuration(
    program: &Program,
    args: &TrainArgs,
    existing: Option<&RunFolder>,
) -> Result<Resolved, CliError> {
    let catalogue = program.catalogue();
    let mut resolved = match (&args.config, existing) {
        (None, Some(folder)) => {
            let mut resolved = catalogue.resolve_run(&folder.config())?;
            for set in &args.sets {
                resolved.set(&format!("--set {set}"), set)?;
            }
            resolved
        }
        (config, _) => catalogue.resolve(config.as_deref().or(catalogue.default_preset()), &args.sets)?,
    };
    let mut set = |option: String, key: &str, value: Value| resolved.set_value(&option, key, value);
    if let Some(ranks) = args.ranks {
        set(format!("--ranks {ranks}"), "train.ranks", Value::Integer(ranks.into()))?;
    }
    if let Some(strategy) = &args.strategy {
        set(format!("--strategy {strategy}"), "train.strategy", Value::String(strategy.clone()))?;
    }
    if let Some(steps) = args.steps {
        set(format!("--steps {steps}"), "train.stop_step", Value::Integer(steps.into()))?;
        set(format!("--steps {steps}"), "train.stop_epoch", Value::Integer(0))?;
    }
    if let Some(epochs) = args.epochs {
        set(format!("--epochs {epochs}"), "train.stop_epoch", Value::Integer(epochs.into()))?;
        set(format!("--epochs {epochs}"), "train.stop_step", Value::Integer(0))?;
    }
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// Takes `--data KIND=PATH` over.
pub(super) fn set_data(resolved: &mut Resolved, data: &str) -> Result<(), CliError> {
    let (kind, path) = data.split_once('=').unwrap_or((data, ""));
    let option = format!("--data {data}");
    resolved.set_value(&option, "data.kind", Value::String(kind.to_owned()))?;
    // Absolute, so that the run's config.toml means the same from everywhere.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| PathBuf::from(path));
    let path = if path.is_empty() { String::new() } else { absolute.display().to_string() };
    resolved.set_value(&option, "data.path", Value::String(path))?;
    Ok(())
}

/// Writes the resolved configuration into the run's folder.
pub(super) fn write_config(folder: &RunFolder, resolved: &Resolved) -> Result<(), RunError> {
    let path = folder.config();
    write_aside(&path, resolved.to_toml(Detail::Values).trim_start().as_bytes())
        .map_err(RunError::io("write", &path))
}
