//! `phalanx train`: resolves the configuration, makes or finds the run's folder, and starts the ranks.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use phalanx_collectives::{FlightRecord, Launcher};
use toml::Value;

use super::hosts::ByHost;
use super::interrupts::{Interrupts, announce, stop_before_the_end};
use super::node::NodeArgs;
use super::{CliError, launched, node, rank, task_of, tui};
use crate::Program;
use crate::console::{KeptOutput, err, out};
use phalanx_launch::{Ended, Hosts, Replacements, Supervisor};
use phalanx_report::dashboard;
use phalanx_run::StopFlag;
use phalanx_run::{JoinTicket, RunError, RunFolder, Summary, write_aside};
use phalanx_trace::TraceSteps;
use phalanx_trainer::config::{Detail, Resolved};
use phalanx_trainer::engine::{self, FirstRun, RunEnd};

/// Trains a model. Ctrl-C finishes the step and leaves a checkpoint; a second one ends at once.
#[derive(Debug, Clone, Args)]
pub(super) struct TrainArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the first preset].
    pub(super) config: Option<String>,
    /// Overrides a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// How many ranks train together.
    #[arg(long)]
    pub(super) ranks: Option<u32>,
    /// Starts the ranks on several hosts by ssh: `a:4,b:4`, or a file with a host and its ranks in each line. The program and the run's
    /// folder must be at the same place on all of them.
    #[arg(long, value_name = "HOST:RANKS,…|FILE", conflicts_with_all = ["tui", "servers"])]
    pub(super) hosts: Option<String>,
    #[command(flatten)]
    pub(super) node: NodeArgs,
    /// With --hosts: the ssh program with its options.
    #[arg(long, value_name = "COMMAND", requires = "hosts", default_value = super::hosts::SSH)]
    ssh: String,
    /// How many processes besides only serve parameters, under ps-bsp, ps-ssp and ps-asp.
    #[arg(long)]
    servers: Option<u32>,
    /// Ranks may die, leave and join while training goes on, as long as so many are left and at most so many take part.
    #[arg(long, value_name = "MIN:MAX", value_parser = bounds)]
    elastic: Option<(u32, u32)>,
    /// How ranks share the work.
    #[arg(long)]
    pub(super) strategy: Option<String>,
    /// A network that is simulated: bandwidth and latency of each rank's link, as in comm.link.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
    /// The images: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    pub(super) data: Option<String>,
    /// Stops after this step, counted from the start of the run; the schedules stay those of the configuration.
    #[arg(long, conflicts_with = "epochs")]
    steps: Option<u32>,
    /// Stops after this epoch, counted from the start of the run; the schedules stay those of the configuration.
    #[arg(long)]
    epochs: Option<u32>,
    /// The run's folder [default: runs/NAME-TIME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    /// Continues the run in --out, or the newest of this name, from its newest complete checkpoint.
    #[arg(long)]
    pub(super) resume: bool,
    /// Shows a dashboard instead of lines, if this is a terminal; `?` tells its keys.
    #[arg(long)]
    pub(super) tui: bool,
    /// Writes when each rank did what in these steps into trace.json: from step A to step B, counted from 1, or all.
    #[arg(long, value_name = "A..B", num_args = 0..=1, default_missing_value = "all")]
    pub(super) trace: Option<TraceSteps>,
    /// Says what would be done, and does not train.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The exit code of a run that was interrupted and has saved, for schedulers that are to start it again (75 is usual).
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(super) interrupted_code: u8,
}

impl TrainArgs {
    /// The first of the options given that a run's configuration would be another by.
    pub(super) fn changes(&self) -> Option<&'static str> {
        let options = [
            ("the preset", self.config.is_some()),
            ("--set", !self.sets.is_empty()),
            ("--ranks", self.ranks.is_some()),
            ("--servers", self.servers.is_some()),
            ("--elastic", self.elastic.is_some()),
            ("--strategy", self.strategy.is_some()),
            ("--link", self.link.is_some()),
            ("--data", self.data.is_some()),
            ("--steps", self.steps.is_some()),
            ("--epochs", self.epochs.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
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
    let by_host = args.hosts.as_deref().map(|hosts| ByHost::read(hosts, &args.ssh)).transpose()?;
    if let Some(by_host) = &by_host {
        by_host.check(&resolved)?;
    }
    let task = task_of(program, &resolved.config)?;
    let first = task.first_run(&resolved.config);
    if args.dry_run {
        out(resolved.to_toml(Detail::Values).trim());
        for line in engine::describe(&task, &resolved.config).map_err(CliError::failed)? {
            out(&line);
        }
        if let Some(first) = &first {
            out(&format!("before: {}, whose folder {} then names", first.preset, key_of(&task)));
        }
        return Ok(());
    }
    let in_one_process = engine::in_one_process(&resolved.config);
    if let Some(place) = args.node.place()? {
        return node::run(program, args, &resolved, &task, &place);
    }
    let tui = args.tui && dashboard::is_terminal();
    if let Some(world) = engine::launcher_world().map_err(|error| CliError::Usage(error.to_string()))? {
        world.check(&resolved.config).map_err(|error| CliError::Usage(error.to_string()))?;
        if let Some(ranks) = args.ranks
            && !in_one_process
            && resolved.config.world_size() != world.size()
        {
            return Err(CliError::Usage(format!(
                "--ranks {ranks}: a launcher ({}) has started this process as one of {} ranks; leave --ranks out, or start the ranks by the \
                 launcher",
                launcher_name(),
                world.size()
            )));
        }
        launched::check_first(&task, &resolved.config)?;
        if by_host.is_some() {
            return Err(CliError::Usage(
                "--hosts is for trainings that start their ranks themselves; a launcher has started this one"
                    .to_owned(),
            ));
        }
        if args.tui {
            return Err(CliError::Usage(
                "--tui is for trainings that start their ranks themselves; look at this one with `watch` and its folder"
                    .to_owned(),
            ));
        }
        if !in_one_process {
            launched::check_elastic(&resolved, &world)?;
            let end = launched::run(&task, &resolved, existing, args.out.as_deref(), &world)?;
            return ended(args, end);
        }
    }
    let is_new = existing.is_none();
    let folder = match existing {
        Some(folder) => folder,
        None => RunFolder::create(args.out.as_deref(), Path::new(RUNS), &resolved.name)
            .map_err(CliError::failed)?,
    };
    let resolved = match &first {
        Some(first) => after_first(resolved, &folder, first, key_of(&task))?,
        None => resolved,
    };
    write_config(&folder, &resolved).map_err(CliError::failed)?;
    if resolved.config.elastic().is_some() {
        // What is written of an attempt that is over would send those away who wait to join this one.
        let _ = std::fs::remove_file(folder.state());
    }
    let stop = StopFlag::default();
    let is_alone = resolved.config.world_size() == 1 && resolved.config.elastic().is_none();
    let margin = Duration::from_secs(resolved.config.checkpoint.limit_margin);
    // A script or a shell of a job that starts the ranks itself; jobs whose launchers do are seen to by these.
    let interrupts = match !tui && (is_alone || in_one_process) {
        true => {
            stop_before_the_end(&stop, margin, true)?;
            Interrupts::stop_first(&stop)?
        }
        false => {
            let interrupts = Interrupts::listen()?;
            interrupts.heed_the_end(margin)?;
            interrupts
        }
    };
    let by_host = by_host.as_ref();
    // What is interrupted while its first run is trained goes on with that.
    let place = first_folder(&folder);
    if place.join("config.toml").is_file() && !is_finished(&place) {
        let of_first = RunFolder::open(&place).map_err(CliError::failed)?;
        let resolved = program.catalogue().resolve_run(&of_first.config())?;
        out(&format!("before: {} in {}", resolved.config.model.kind, place.display()));
        run_ranks(program, &of_first, &resolved, (&interrupts, &stop), (tui, by_host))?;
        // A signal may have come, the time of the job may be up, or a key may have stopped it: what follows is another run.
        if interrupts.count() > 0 || stop.is_raised() || !is_finished(&place) {
            err("stopped before the run that builds on this one has begun; go on with --resume");
            return ended(args, RunEnd::Interrupted);
        }
    }
    run_ranks(program, &folder, &resolved, (&interrupts, &stop), (tui, by_host)).inspect_err(|_| {
        // Whoever mends the command can give it again; what went wrong is what is told, whether this succeeds or not.
        if is_new {
            let _ = folder.give_up_unless_begun();
        }
    })?;
    let is_interrupted =
        Summary::read(&folder.summary()).is_ok_and(|summary| summary.status == "interrupted");
    ended(args, if is_interrupted { RunEnd::Interrupted } else { RunEnd::Finished })
}

/// Who has started this process, in words.
fn launcher_name() -> String {
    let launcher = Launcher::of(&|name| std::env::var(name).ok());
    launcher.map_or_else(|| "by its environment".to_owned(), |launcher| launcher.to_string())
}

/// What a run's end is to whoever has started the program.
fn ended(args: &TrainArgs, end: RunEnd) -> Result<(), CliError> {
    match (end, args.interrupted_code) {
        (RunEnd::Finished | RunEnd::Left, _) | (_, 0) => Ok(()),
        (RunEnd::Interrupted, code) => Err(CliError::Ended { message: String::new(), code }),
    }
}

/// The key that names the run before one of a task.
fn key_of(task: &engine::Task) -> &'static str {
    task.first_key().unwrap_or_default()
}

/// Where a run keeps the one that it builds on.
fn first_folder(folder: &RunFolder) -> PathBuf {
    folder.path().join("first")
}

/// The configuration of the run in a folder. The run before it that it keeps is found wherever the folder was moved.
pub(super) fn configuration_of(program: &Program, folder: &RunFolder) -> Result<Resolved, CliError> {
    let mut resolved = program.catalogue().resolve_run(&folder.config())?;
    let place = first_folder(folder);
    let key = program.task_of(&resolved.config).and_then(engine::Task::first_key);
    if let Some(key) = key.filter(|_| place.join("config.toml").is_file()) {
        let place = std::path::absolute(place).map_err(CliError::failed)?;
        resolved.set_value("the run before", key, Value::String(place.display().to_string()))?;
    }
    Ok(resolved)
}

/// Whether the run in a folder has come to its end.
fn is_finished(folder: &Path) -> bool {
    let summary = RunFolder::open(folder).ok().and_then(|folder| Summary::read(&folder.summary()).ok());
    summary.is_some_and(|summary| summary.status == "finished")
}

/// Prepares the run that another one builds on in a folder of it, and sets the key that names it.
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
        write_config(&made, &before).map_err(CliError::failed)?;
    }
    let option = format!("the run of {} before", first.preset);
    resolved.set_value(&option, key, Value::String(place.display().to_string()))?;
    Ok(resolved)
}

/// Trains the run in a folder by as many ranks as it has, until it is finished or interrupted.
fn run_ranks(
    program: &Program,
    folder: &RunFolder,
    resolved: &Resolved,
    (interrupts, stop): (&Interrupts, &StopFlag),
    (tui, by_host): (bool, Option<&ByHost>),
) -> Result<(), CliError> {
    let task = task_of(program, &resolved.config)?;
    let (mut ranks, in_one_process) =
        (resolved.config.world_size(), engine::in_one_process(&resolved.config));
    let elastic = resolved.config.elastic();
    if !tui && by_host.is_none() && (ranks == 1 && elastic.is_none() || in_one_process) {
        return rank::run_here(
            &task,
            folder,
            resolved,
            stop,
            rank::observer(false, true, KeptOutput::default()),
        );
    }
    if in_one_process {
        ranks = 1;
    }
    let executable = std::env::current_exe().map_err(CliError::failed)?;
    let mut arguments = vec!["rank".to_owned(), folder.path().display().to_string()];
    arguments.extend(tui.then(|| "--quiet".to_owned()));
    let sync = &resolved.config.sync;
    let least = (sync.min_workers > 0).then_some(sync.min_workers + sync.servers);
    // Where too few are left of a world that may change, those say so themselves, when they have saved.
    let least = least.or(elastic.is_some().then_some(1));
    let joins = folder.joins();
    if elastic.is_some() && joins.exists() {
        // Whoever waited for an earlier attempt sees that it is over.
        std::fs::remove_dir_all(&joins).map_err(CliError::failed)?;
    }
    let claim = move || {
        let ticket = JoinTicket::claim(&joins, ranks);
        ticket.map(|ticket| ticket.number()).map_err(|error| error.to_string())
    };
    let replacements = Replacements::new(resolved.config.elastic.respawn, claim);
    let (logs, secret_file) = (folder.logs(), elastic.is_some().then(|| folder.secret()));
    let told = std::cell::Cell::new(false);
    let interrupted = || {
        let count = interrupts.count();
        if count == 1 && !told.replace(true) {
            announce();
        }
        count
    };
    let ended = match by_host {
        Some(by_host) => by_host
            .supervisor(&executable, folder, resolved.config.sync.min_workers > 0)?
            .run(interrupted)
            .map_err(CliError::failed),
        None => {
            let supervisor = Supervisor {
                program: executable,
                arguments,
                ranks,
                logs,
                least,
                replacements,
                secret_file,
                quiet: tui,
                place: None,
                interrupted_code: None,
            };
            let ended = match tui {
                true => tui::supervise(&supervisor, folder, program.name(), interrupts),
                false => supervisor.run(interrupted),
            };
            ended.map_err(CliError::failed)
        }
    };
    let ended = ended.inspect_err(|_| {
        if (0..ranks).any(|rank| FlightRecord::path(&folder.logs(), rank).exists()) {
            err(&format!("what each rank did: {} diagnose {}", program.name(), folder.path().display()));
        }
    });
    let message = match ended? {
        Ended::Finished | Ended::Interrupted => return Ok(()),
        Ended::BeforeMeeting => "told to end while the ranks looked for each other; nothing was trained",
        Ended::Aborted => "aborted",
    };
    Err(CliError::Ended { message: message.to_owned(), code: interrupts.exit_code() })
}

/// The configuration that the arguments ask for.
pub(super) fn configuration(
    program: &Program,
    args: &TrainArgs,
    existing: Option<&RunFolder>,
) -> Result<Resolved, CliError> {
    let catalogue = program.catalogue();
    let mut resolved = match (&args.config, existing) {
        (None, Some(folder)) => {
            let mut resolved = configuration_of(program, folder)?;
            for set in &args.sets {
                resolved.set(&format!("--set {set}"), set)?;
            }
            resolved
        }
        (config, _) => catalogue.resolve(config.as_deref().or(catalogue.default_preset()), &args.sets)?,
    };
    let servers = resolved.config.sync.servers;
    let mut set = |option: String, key: &str, value: Value| resolved.set_value(&option, key, value);
    if let (Some(hosts), None) = (&args.hosts, args.ranks) {
        let hosts = Hosts::read(hosts).map_err(|error| CliError::Usage(error.to_string()))?;
        let ranks = hosts.ranks().saturating_sub(servers).max(1);
        set(
            format!("--hosts {}", args.hosts.as_deref().unwrap_or_default()),
            "train.ranks",
            Value::Integer(ranks as i64),
        )?;
    }
    if let Some(place) = args.node.place()? {
        let ranks = place.world_size().saturating_sub(servers).max(1);
        set(format!("--nnodes {}", place.nodes), "train.ranks", Value::Integer(ranks as i64))?;
    }
    if let Some(ranks) = args.ranks {
        set(format!("--ranks {ranks}"), "train.ranks", Value::Integer(ranks.into()))?;
    }
    if let Some((least, most)) = args.elastic {
        let option = format!("--elastic {least}:{most}");
        set(option.clone(), "elastic.min", Value::Integer(least.into()))?;
        set(option.clone(), "elastic.max", Value::Integer(most.into()))?;
        if args.ranks.is_none() {
            set(option, "train.ranks", Value::Integer(most.into()))?;
        }
    }
    if let Some(servers) = args.servers {
        set(format!("--servers {servers}"), "sync.servers", Value::Integer(servers.into()))?;
    }
    if let Some(strategy) = &args.strategy {
        set(format!("--strategy {strategy}"), "train.strategy", Value::String(strategy.clone()))?;
    }
    if let Some(link) = &args.link {
        set(format!("--link {link}"), "comm.link", Value::String(link.clone()))?;
    }
    if let Some(steps) = args.steps {
        set(format!("--steps {steps}"), "train.stop_step", Value::Integer(steps.into()))?;
        set(format!("--steps {steps}"), "train.stop_epoch", Value::Integer(0))?;
    }
    if let Some(epochs) = args.epochs {
        set(format!("--epochs {epochs}"), "train.stop_epoch", Value::Integer(epochs.into()))?;
        set(format!("--epochs {epochs}"), "train.stop_step", Value::Integer(0))?;
    }
    if let Some(steps) = &args.trace {
        set(format!("--trace {steps}"), "log.trace", Value::String(steps.to_string()))?;
    }
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// Reads `MIN:MAX`.
fn bounds(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let both = text.split_once(':').and_then(|(least, most)| Some((number(least)?, number(most)?)));
    both.filter(|(least, most)| least <= most).ok_or_else(|| "expected MIN:MAX, such as 2:4".to_owned())
}

/// Takes `--data KIND=PATH` over.
pub(super) fn set_data(resolved: &mut Resolved, data: &str) -> Result<(), CliError> {
    let (kind, path) = data.split_once('=').unwrap_or((data, ""));
    let option = format!("--data {data}");
    resolved.set_value(&option, "data.kind", Value::String(kind.to_owned()))?;
    // Absolute, so that the run's config.toml means the same from everywhere.
    let absolute =
        |part| std::path::absolute(part).unwrap_or_else(|_| PathBuf::from(part)).display().to_string();
    // Shards can be given by several paths.
    let parts: Vec<String> = path.split("::").map(absolute).collect();
    let path = if path.is_empty() { String::new() } else { parts.join("::") };
    resolved.set_value(&option, "data.path", Value::String(path))?;
    Ok(())
}

/// Writes the resolved configuration into the run's folder.
pub(super) fn write_config(folder: &RunFolder, resolved: &Resolved) -> Result<(), RunError> {
    let path = folder.config();
    write_aside(&path, resolved.to_toml(Detail::Values).trim_start().as_bytes())
        .map_err(RunError::io("write", &path))
}
