//! `phalanx plan`: what each strategy would hold and send, before anything runs.

use clap::Args;
use phalanx_sharding::{Computing, MemoryPlan, Overlap, PRESETS, Reach, StepTime};
use serde_json::{Value as Json, json};
use toml::Value;

use super::error::CliError;
use super::resolve::{set_data, task_of};
use crate::Program;
use phalanx_run::format;
use phalanx_trainer::config::{Config, Resolved};

use crate::console::out;
use phalanx_trainer::engine::{self, ModelPlan};

/// Says what each strategy would hold on a rank and send in a step; nothing is allocated, read or trained.
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
    /// How many ranks train together.
    #[arg(long)]
    ranks: Option<u32>,
    /// The optimizer, as in optim.kind.
    #[arg(long, value_name = "NAME")]
    optimizer: Option<String>,
    /// Images in a step over all ranks; without it as many as the ranks can share evenly.
    #[arg(long)]
    batch: Option<u32>,
    /// The link that each rank has, bandwidth and latency, as in comm.link; with --step-ms the plan says how long steps take.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
    /// Milliseconds of a step of one rank alone with its share of the batch, as measured (step_ms of a study, or `seconds` of
    /// metrics.jsonl).
    #[arg(long, value_name = "MS", requires = "link")]
    step_ms: Option<f64>,
    /// The images: shapes, cifar10, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Overrides a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// Prints JSON, with all ranks and exact bytes.
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
    let plan = engine::plan_memory(&task_of(program, config)?, config, PRESETS).map_err(CliError::failed)?;
    let times = step_times(config, &plan, args.step_ms)?;
    if args.json {
        let json = as_json(config, &plan, chosen, &times);
        out(&serde_json::to_string_pretty(&json).map_err(CliError::failed)?);
        return Ok(());
    }
    for line in lines(config, &plan, chosen, &times) {
        out(&line);
    }
    Ok(())
}

/// How long a step takes under each strategy over the configured link, if one rank alone computes so long for its share.
fn step_times(
    config: &Config,
    plan: &ModelPlan,
    step_ms: Option<f64>,
) -> Result<Vec<Option<StepTime>>, CliError> {
    let (Some(ms), Some(costs)) = (step_ms, config.comm.simulated_costs().map_err(CliError::failed)?) else {
        return Ok(vec![None; plan.plans.len()]);
    };
    if !(ms.is_finite() && ms > 0.0) {
        return Err(CliError::Usage(format!("--step-ms {ms}: a step takes more than 0 ms")));
    }
    let hosts = config.comm.ranks_by_host(plan.workload.ranks);
    let reach = Reach {
        costs: &costs,
        hosts: &hosts,
        algorithm: config.comm.algorithm,
        overlaps: config.train.overlap != Overlap::Never,
        scattered: config.scattered_bytes(),
    };
    let computing = Computing::of_step(ms / 1e3);
    Ok(plan.plans.iter().map(|plan| plan.step_time(computing, &reach)).collect())
}

/// The configuration that the arguments ask for.
fn configuration(program: &Program, args: &PlanArgs) -> Result<Resolved, CliError> {
    let mut resolved = program.catalogue().resolve(args.config.as_deref(), &[])?;
    // Which keys there are depends on the model.
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
        // The batch changes nothing of what is planned, so it need not stand in the way.
        let train = &mut resolved.config.train;
        let pieces = train.ranks.saturating_mul(train.accumulate).max(1);
        train.global_batch = train.global_batch.div_ceil(pieces).max(1).saturating_mul(pieces);
    }
    resolved.validate_without_images()?;
    Ok(resolved)
}

/// A part of a whole; 1 of nothing.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { part as f64 / whole as f64 }
}

/// What a plan's ratios are of: that of `ddp`.
fn reference(plan: &ModelPlan) -> Option<&MemoryPlan> {
    plan.plans.iter().find(|plan| plan.strategy.name == "ddp")
}

fn optimizer(config: &Config, plan: &ModelPlan) -> String {
    let numbers = plan.workload.optimizer_numbers;
    let averages = if plan.workload.averages { ", and averages of weights" } else { "" };
    format!("{}: {numbers} numbers a learnt parameter{averages}", config.optim.kind)
}

fn lines(config: &Config, plan: &ModelPlan, chosen: Option<&str>, times: &[Option<StepTime>]) -> Vec<String> {
    let size = format::bytes;
    let ranks = plan.workload.ranks;
    let mut lines = vec![
        format!(
            "model      {}: {} parameters, {} of them learnt",
            plan.model,
            format::count(plan.parameters),
            format::count(plan.trainable)
        ),
        format!("optimizer  {}", optimizer(config, plan)),
        format!("ranks      {ranks}, each with {} images a step", config.train.global_batch / ranks),
        format!("comm       algorithm {}", config.comm.algorithm),
        format!("codec      {}", config.codec.describe()),
    ];
    let (reference, Some(first)) = (reference(plan), plan.plans.first()) else { return lines };
    let largest = first.largest_block();
    let blocks: u64 = first.blocks.iter().map(|block| block.bytes).sum();
    lines.push(format!(
        "layout     {} flat memories for {} blocks of {}{}",
        first.bucket_count,
        first.blocks.len(),
        size(blocks),
        largest.map_or_else(String::new, |block| format!(
            ", the largest {} of {}",
            block.name,
            size(block.bytes)
        ))
    ));
    if first.outside > 0 {
        lines.push(format!("           {} outside of any block, whole on every rank", size(first.outside)));
    }
    lines.push(String::new());
    let mut table = vec![
        [
            "  strategy",
            "parameters",
            "gradients",
            "optimizer",
            "codec, sync",
            "held",
            "of ddp",
            "gathered",
            "unreduced",
            "at most",
            "of ddp",
            "sent a step",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let timed = times.iter().any(Option::is_some);
    if timed {
        table[0].extend(["step ms", "waits"].map(str::to_owned));
    }
    for (row, time) in plan.plans.iter().zip(times) {
        let held = row.largest_rank();
        // There is no such row where a codec is for groups only.
        let of_ddp = |part: &dyn Fn(&MemoryPlan) -> f64| {
            reference.map_or_else(|| "-".to_owned(), |ddp| format!("{:.2}", part(ddp)))
        };
        let mark = if chosen == Some(row.strategy.name) { "> " } else { "  " };
        table.push(vec![
            format!("{mark}{}", row.strategy.name),
            size(held.parameters),
            size(held.gradients),
            size(held.optimizer + held.averages),
            size(held.codec + held.synchrony),
            size(held.total()),
            of_ddp(&|ddp| ratio(held.total(), ddp.largest_rank().total())),
            size(row.gathered),
            size(row.unreduced + row.wire),
            size(row.peak()),
            of_ddp(&|ddp| ratio(row.peak(), ddp.peak())),
            size(row.sent_per_step),
        ]);
        if timed {
            let of = |part: fn(&StepTime) -> f64| {
                time.as_ref().map_or_else(|| "-".to_owned(), |time| format::number(1e3 * part(time)))
            };
            table.last_mut().into_iter().for_each(|cells| {
                cells.extend([of(|time| time.whole), of(|time| time.exposed)]);
            });
        }
    }
    lines.extend(format::columns(&table));
    lines.push(String::new());
    lines.push("Of the rank that holds most. Held: between steps. Gathered, unreduced: whole blocks besides, while they".to_owned());
    lines.push(
        "compute. Not counted: activations, images, buffers of communication, the program itself.".to_owned(),
    );
    if timed {
        lines.push(
            "Step, and what of it waits for communication: predicted from one rank's step and the link."
                .to_owned(),
        );
    }
    if ranks == 1 {
        lines.push("One rank has nobody to share with; with --ranks N strategies differ.".to_owned());
    }
    lines
}

fn as_json(config: &Config, plan: &ModelPlan, chosen: Option<&str>, times: &[Option<StepTime>]) -> Json {
    let reference = reference(plan);
    let row = |(row, time): (&MemoryPlan, &Option<StepTime>)| {
        let ms = |part: fn(&StepTime) -> f64| time.as_ref().map(|time| 1e3 * part(time));
        let held = row.largest_rank();
        let ranks: Vec<Json> = row
            .ranks
            .iter()
            .map(|rank| {
                json!({
                    "parameter_bytes": rank.parameters, "gradient_bytes": rank.gradients,
                    "optimizer_bytes": rank.optimizer + rank.averages, "average_bytes": rank.averages,
                    "codec_bytes": rank.codec, "synchrony_bytes": rank.synchrony,
                })
            })
            .collect();
        json!({
            "strategy": row.strategy.name,
            "chosen": chosen == Some(row.strategy.name),
            "shards": row.shards,
            "parameter_bytes": held.parameters,
            "gradient_bytes": held.gradients,
            "optimizer_bytes": held.optimizer + held.averages,
            "average_bytes": held.averages,
            "held_bytes": held.total(),
            "held_of_ddp": reference.map(|ddp| ratio(held.total(), ddp.largest_rank().total())),
            "gathered_bytes": row.gathered,
            "unreduced_bytes": row.unreduced,
            "wire_bytes": row.wire,
            "codec_bytes": held.codec,
            "synchrony_bytes": held.synchrony,
            "activation_bytes": "not counted",
            "peak_bytes": row.peak(),
            "peak_of_ddp": reference.map(|ddp| ratio(row.peak(), ddp.peak())),
            "bytes_sent_per_step": row.sent_per_step,
            "predicted_step_ms": ms(|time| time.whole),
            "predicted_communication_ms": ms(|time| time.communication),
            "predicted_exposed_ms": ms(|time| time.exposed),
            "ranks": ranks,
        })
    };
    let layout = reference.map(|ddp| {
        json!({
            "flat_params": ddp.bucket_count,
            "blocks": ddp.blocks.len(),
            "largest_block": ddp.largest_block().map(|block| json!({ "name": block.name, "bytes": block.bytes })),
            "outside_of_blocks_bytes": ddp.outside,
        })
    });
    json!({
        "model": plan.model,
        "parameters": plan.parameters,
        "trainable_parameters": plan.trainable,
        "ranks": plan.workload.ranks,
        "global_batch": config.train.global_batch,
        "micro_batches": plan.workload.micro_batches,
        "algorithm": config.comm.algorithm.name(),
        "codec": config.codec.kind.to_string(),
        "codec_in_words": config.codec.describe(),
        "optimizer": config.optim.kind.as_str(),
        "optimizer_numbers_per_parameter": plan.workload.optimizer_numbers,
        "averages": plan.workload.averages,
        "layout": layout,
        "strategies": plan.plans.iter().zip(times).map(row).collect::<Vec<_>>(),
    })
}
