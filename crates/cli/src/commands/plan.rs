//! `phalanx plan`: predicts memory and traffic of each strategy without running it.

mod json;
mod measured;
mod ratio;
mod schedule;
mod step;
mod text;

use std::path::PathBuf;

use clap::Args;
use phalanx_run::write_aside;
use phalanx_sharding::STRATEGIES;
use toml::Value;

use self::schedule::PlannedSchedule;
use super::error::CliError;
use super::resolve::{set_data, set_parallel, task_of};
use crate::Program;
use phalanx_config::{Config, Resolved};

use crate::console::out;
use phalanx_trainer::engine::{self, MeasuredStages, Task};

/// Predict the memory and traffic of each strategy. Nothing is allocated or trained, and nothing read without --check or --measure.
#[derive(Debug, Args)]
pub(super) struct PlanArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the defaults of all keys].
    config: Option<String>,
    /// The model, as in model.kind.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// The strategy to mark; `all` marks none.
    #[arg(long)]
    strategy: Option<String>,
    /// The number of ranks.
    #[arg(long)]
    ranks: Option<u32>,
    /// The degrees of the mesh, as in [parallel]; -1 is the rest of the ranks.
    #[arg(long, value_name = "replicate=2,shard=2")]
    parallel: Option<String>,
    /// The optimizer, as in optim.kind.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Images in a step over all ranks [default: a number that the ranks share evenly].
    #[arg(long)]
    batch: Option<u32>,
    /// Bandwidth and latency of the link of each rank, as in comm.link; with --step-ms the plan predicts step times.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
    /// Measured milliseconds of a step of a single rank with its share of the batch (step_ms of a study, or `seconds`
    /// of metrics.jsonl).
    #[arg(long, value_name = "MS", requires = "link")]
    step_ms: Option<f64>,
    /// The images: shapes, cifar10, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Run the first step without numbers, as each of the ranks that share layers: finds shapes and cuts that do not fit, and counts
    /// operations, activations and messages. Reads the samples of the step.
    #[arg(long)]
    check: bool,
    /// Measure each block of a model in stages (--parallel pipeline=N) on the CPU of this machine, and tell the stages that take equally
    /// long. Reads the samples of the first step; a block at a time is in memory.
    #[arg(long)]
    measure: bool,
    /// Write a picture (SVG) of the schedule of a model in stages (--parallel pipeline=N): when each pass runs, with --measure by the
    /// measured times.
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Print JSON, with all ranks and exact bytes.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(program: &Program, args: &PlanArgs) -> Result<(), CliError> {
    let resolved = configuration(program, args)?;
    let config = &resolved.config;
    let chosen = match &args.strategy {
        Some(name) if name == "all" => None,
        Some(_) => Some(config.train.strategy.name),
        None => None,
    };
    if let Some(ms) = args.step_ms.filter(|ms| !(ms.is_finite() && *ms > 0.0)) {
        return Err(CliError::Usage(format!("--step-ms {ms}: must be above 0")));
    }
    let seconds = args.step_ms.map(|ms| ms / 1e3);
    let task = task_of(program, config)?;
    let estimate = engine::estimate(&task, config, STRATEGIES, seconds).map_err(CliError::failed)?;
    let step = match args.check {
        true => Some(engine::outline_step(&task, config).map_err(CliError::failed)?),
        false => None,
    };
    let schedule = PlannedSchedule::of(config).map_err(CliError::failed)?;
    let measured = measured(args, &task, config)?;
    if let Some(path) = &args.schedule {
        let schedule = schedule.as_ref().ok_or_else(|| without_stages("--schedule draws"))?;
        let picture = schedule.picture(measured.as_ref()).map_err(CliError::failed)?.svg();
        write_aside(path, picture.as_bytes())
            .map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
    }
    if args.json {
        let mut json = json::of(config, &estimate, chosen, step.as_ref());
        if let (Some(json), Some(schedule)) = (json.as_object_mut(), &schedule) {
            let mut told = schedule.json();
            told["measured"] = measured.as_ref().map_or(serde_json::Value::Null, measured::json);
            json.insert("pipeline".to_owned(), told);
        }
        out(&serde_json::to_string_pretty(&json).map_err(CliError::failed)?);
        return Ok(());
    }
    let checked = step.as_ref().map_or_else(Vec::new, step::lines);
    let scheduled = schedule.as_ref().map_or_else(Vec::new, PlannedSchedule::lines);
    let stages = measured.as_ref().map_or_else(Vec::new, measured::lines);
    for line in
        text::lines(config, &estimate, chosen).into_iter().chain(scheduled).chain(stages).chain(checked)
    {
        out(&line);
    }
    Ok(())
}

/// Measures the blocks of the model, if that is asked for.
fn measured(args: &PlanArgs, task: &Task, config: &Config) -> Result<Option<MeasuredStages>, CliError> {
    match (args.measure, config.pipeline_ranks()) {
        (false, _) => Ok(None),
        (true, 1) => Err(without_stages("--measure is for")),
        (true, _) => Ok(Some(engine::measure_stages(task, config).map_err(CliError::failed)?)),
    }
}

/// The error of an option that a model without stages does not have.
fn without_stages(what: &str) -> CliError {
    CliError::Usage(format!("{what} the stages of a model: give --parallel pipeline=N"))
}

/// Resolves the configuration from the arguments.
fn configuration(program: &Program, args: &PlanArgs) -> Result<Resolved, CliError> {
    let mut resolved = program.catalogue().resolve(args.config.as_deref(), &[])?;
    // The model determines which keys exist.
    if let Some(model) = &args.model {
        resolved.set_value(&format!("--model {model}"), "model.kind", Value::String(model.clone()))?;
    }
    for set in args.sets.iter().filter(|set| set.starts_with("model.kind=")).chain(&args.sets) {
        resolved.set(&format!("--set {set}"), set)?;
    }
    let strategy = args.strategy.as_ref().filter(|name| *name != "all");
    for (option, key, name) in
        [("--optimizer", "optim.kind", args.optimizer.as_ref()), ("--strategy", "train.strategy", strategy)]
    {
        if let Some(name) = name {
            resolved.set_value(&format!("{option} {name}"), key, Value::String(name.clone()))?;
        }
    }
    if let Some(degrees) = &args.parallel {
        set_parallel(&mut resolved, degrees)?;
    }
    if let Some(link) = &args.link {
        resolved.set_value(&format!("--link {link}"), "comm.link", Value::String(link.clone()))?;
    }
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    for (option, key, count) in
        [("--ranks", "train.ranks", args.ranks), ("--batch", "train.global_batch", args.batch)]
    {
        if let Some(count) = count {
            resolved.set_value(&format!("{option} {count}"), key, Value::Integer(count.into()))?;
        }
    }
    if args.batch.is_none() {
        let resolved_micros = resolved.config.pipeline.micro_batches;
        // The plan does not depend on the batch, so an indivisible batch need not be an error.
        let train = &mut resolved.config.train;
        let micros = train.accumulate.max(resolved_micros);
        let pieces = train.ranks.saturating_mul(micros).max(1);
        train.global_batch = train.global_batch.div_ceil(pieces).max(1).saturating_mul(pieces);
    }
    resolved.validate_without_images()?;
    Ok(resolved)
}
