//! `phalanx train`: resolves the configuration and starts the ranks, in one of four ways.

use std::path::Path;

use phalanx_collectives::Launcher;
use phalanx_config::{Config, Detail, Resolved};
use phalanx_run::RunFolder;
use phalanx_trainer::engine::{self, Task, World};

use super::error::CliError;
use super::hosts::SshHosts;
use super::local::{self, LocalTraining};
use super::node_args::Node;
use super::process::Display;
use super::resolve::{RUNS, check_utf8, task_of};
use super::train_args::{TrainArgs, configuration};
use super::{launched, node};
use crate::Program;
use crate::console::{Verbosity, out};

/// The way in which ranks are started.
#[derive(Debug)]
enum StartMode {
    /// Not at all: the plan is printed.
    DryRun,
    /// This process starts the ranks of one host of several.
    Node(Node),
    /// A launcher has started this process as a rank.
    Launched(Box<World>),
    /// This process starts all ranks, or is the only one.
    Local,
}

pub(super) fn run(program: &Program, args: &TrainArgs) -> Result<(), CliError> {
    if let Some(out) = &args.out {
        check_utf8("--out", out)?;
    }
    let existing = existing_run(program, args)?;
    let resolved = configuration(program, args, existing.as_ref())?;
    if existing.is_none() || args.start.restart {
        check_weights(&resolved)?;
    }
    let by_host =
        args.world.hosts.as_deref().map(|hosts| SshHosts::read(hosts, &args.world.ssh)).transpose()?;
    if let Some(by_host) = &by_host {
        by_host.check(&resolved)?;
    }
    let task = task_of(program, &resolved.config)?;
    let launcher = || engine::launcher_world().map_err(|error| CliError::Usage(error.to_string()));
    match choose(args, &task, &resolved.config, launcher)? {
        StartMode::DryRun => dry_run(&task, &resolved),
        StartMode::Node(place) => node::run(program, args, &resolved, &task, &place),
        StartMode::Launched(world) => {
            launched::check_elastic(&resolved, &world)?;
            let end = launched::run(program, &task, &resolved, existing, args, &world)?;
            local::ended(args, end)
        }
        StartMode::Local => {
            let display = Display::chosen(args.show.json);
            let by_host = by_host.as_ref();
            LocalTraining { program, args, task: &task, by_host, display }.run(resolved, existing)
        }
    }
}

/// Refuses weights that do not exist before anything is created.
fn check_weights(resolved: &Resolved) -> Result<(), CliError> {
    let weights = &resolved.config.model.weights;
    match std::fs::metadata(weights) {
        Err(error) if !weights.is_empty() => Err(CliError::Usage(format!(
            "{}: model.weights {weights}: {error}",
            resolved.origin("model.weights")
        ))),
        _ => Ok(()),
    }
}

/// Opens the run that `--resume` continues.
fn existing_run(program: &Program, args: &TrainArgs) -> Result<Option<RunFolder>, CliError> {
    if !args.start.resume && !args.start.restart {
        return Ok(None);
    }
    let folder = match &args.out {
        Some(out) => RunFolder::open(out),
        None => {
            let name = args.choice.config.as_deref().or(program.catalogue().default_preset());
            let name = name.unwrap_or(program.name());
            let stem = Path::new(name).file_stem();
            let name = stem.map_or_else(|| name.into(), std::ffi::OsStr::to_string_lossy);
            RunFolder::newest(Path::new(RUNS), &name)
        }
    };
    folder.map(Some).map_err(CliError::failed)
}

/// Decides how ranks are started; `launcher` returns the world of the launcher that has started this process, if one has.
fn choose(
    args: &TrainArgs,
    task: &Task,
    config: &Config,
    launcher: impl FnOnce() -> Result<Option<World>, CliError>,
) -> Result<StartMode, CliError> {
    if args.dry_run {
        return Ok(StartMode::DryRun);
    }
    if let Some(place) = args.world.node.place()? {
        return Ok(StartMode::Node(place));
    }
    let Some(world) = launcher()? else { return Ok(StartMode::Local) };
    let in_one_process = engine::in_one_process(config);
    check_launched(args, config, &world, in_one_process)?;
    launched::check_first(task, config)?;
    Ok(if in_one_process { StartMode::Local } else { StartMode::Launched(Box::new(world)) })
}

/// Refuses options that contradict the launcher that has started this process.
fn check_launched(
    args: &TrainArgs,
    config: &Config,
    world: &World,
    in_one_process: bool,
) -> Result<(), CliError> {
    world.check(config).map_err(|error| CliError::Usage(error.to_string()))?;
    let own_ranks = "is for trainings that start their ranks themselves";
    let problem = match args.world.ranks {
        Some(ranks) if !in_one_process && config.world_size() != world.size() => {
            let launcher = Launcher::of(&|name| std::env::var(name).ok());
            let launcher =
                launcher.map_or_else(|| "by its environment".to_owned(), |launcher| launcher.to_string());
            format!(
                "--ranks {ranks}: a launcher ({launcher}) has started this process as one of {} ranks; leave --ranks out, or start the ranks by the \
                 launcher",
                world.size()
            )
        }
        _ if args.world.hosts.is_some() => format!("--hosts {own_ranks}; a launcher has started this one"),
        _ if args.show.tui => format!("--tui {own_ranks}; look at this one with `watch` and its folder"),
        _ => return Ok(()),
    };
    Err(CliError::Usage(problem))
}

/// Prints the plan; with `--verbose`, the configuration too.
fn dry_run(task: &Task, resolved: &Resolved) -> Result<(), CliError> {
    if Verbosity::get() == Verbosity::Verbose {
        out(resolved.to_toml(Detail::Values).trim());
    }
    for line in engine::describe(task, &resolved.config).map_err(CliError::failed)? {
        out(&line);
    }
    if let Some(first) = task.first_run(&resolved.config) {
        let key = task.first_key().unwrap_or_default();
        out(&format!("before: {}, whose folder {key} then names", first.preset));
    }
    Ok(())
}
