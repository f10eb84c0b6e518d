//! A plan as lines of text.

use phalanx_config::Config;
use phalanx_run::format;
use phalanx_sharding::{MemoryPlan, StepTime};
use phalanx_trainer::engine::{Estimate, ModelPlan};

use super::ratio::{ratio, reference};

/// The columns without times.
const COLUMNS: [&str; 12] = [
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
];

/// The columns of times.
const TIMES: [&str; 2] = ["step ms", "waits"];

/// Renders an estimate; marks the strategy `chosen`.
pub(super) fn lines(config: &Config, estimate: &Estimate, chosen: Option<&str>) -> Vec<String> {
    let (plan, times) = (&estimate.plan, &estimate.times);
    let mut lines = head(config, plan);
    let (reference, Some(first)) = (reference(plan), plan.plans.first()) else { return lines };
    lines.extend(layout(first));
    lines.push(String::new());
    let timed = times.iter().any(Option::is_some);
    let mut titles: Vec<String> = COLUMNS.map(str::to_owned).to_vec();
    titles.extend(TIMES.iter().filter(|_| timed).map(|title| (*title).to_owned()));
    let mut table = vec![titles];
    for (row, time) in plan.plans.iter().zip(times) {
        let mut cells = strategy(row, reference, chosen);
        if timed {
            let of = |part: fn(&StepTime) -> f64| {
                time.as_ref().map_or_else(|| "-".to_owned(), |time| format::number(1e3 * part(time)))
            };
            cells.extend([of(|time| time.whole), of(|time| time.exposed)]);
        }
        table.push(cells);
    }
    lines.extend(format::columns(&table));
    lines.push(String::new());
    let alone = plan.workload.ranks == 1 && !config.shares_model();
    lines.extend(notes(timed, plan, alone));
    lines
}

/// The model, the optimizer and the ranks.
fn head(config: &Config, plan: &ModelPlan) -> Vec<String> {
    let ranks = plan.workload.ranks;
    let stages = config.pipeline_ranks();
    let whose = match (plan.tensor, stages) {
        (1, 1) => ranks.to_string(),
        (tensor, 1) => format!("{ranks} groups of {tensor} that share layers"),
        (tensor, stages) => {
            format!("{ranks} groups of {} with {}", tensor * stages, config.stages_in_words())
        }
    };
    vec![
        format!(
            "model      {}: {} parameters, {} of them learnt",
            plan.model,
            format::count(plan.parameters),
            format::count(plan.trainable)
        ),
        format!("optimizer  {}", optimizer(config, plan)),
        format!("ranks      {whose}, each with {} samples a step", config.train.global_batch / ranks),
        format!("comm       algorithm {}", config.comm.algorithm),
        format!("codec      {}", config.codec.describe()),
    ]
}

fn optimizer(config: &Config, plan: &ModelPlan) -> String {
    let numbers = plan.workload.optimizer_numbers;
    let averages = if plan.workload.averages { ", and averages of weights" } else { "" };
    format!("{}: {numbers} numbers a learnt parameter{averages}", config.optim.kind)
}

/// The blocks of parameters.
fn layout(plan: &MemoryPlan) -> Vec<String> {
    let size = format::bytes;
    let blocks: u64 = plan.blocks.iter().map(|block| block.bytes).sum();
    let largest = plan
        .largest_block()
        .map_or_else(String::new, |block| format!(", the largest {} of {}", block.name, size(block.bytes)));
    let (buckets, count) = (plan.bucket_count, plan.blocks.len());
    let mut lines =
        vec![format!("layout     {buckets} flat memories for {count} blocks of {}{largest}", size(blocks))];
    if plan.outside > 0 {
        lines.push(format!("           {} outside of any block, whole on every rank", size(plan.outside)));
    }
    lines
}

/// The cells of a strategy, without times.
fn strategy(row: &MemoryPlan, reference: Option<&MemoryPlan>, chosen: Option<&str>) -> Vec<String> {
    let size = format::bytes;
    let held = row.largest_rank();
    // The row of ddp is missing where a codec is for groups only.
    let of_ddp = |part: &dyn Fn(&MemoryPlan) -> f64| {
        reference.map_or_else(|| "-".to_owned(), |ddp| format!("{:.2}", part(ddp)))
    };
    let mark = if chosen == Some(row.strategy.name) { "> " } else { "  " };
    vec![
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
    ]
}

/// The explanation under the table.
fn notes(timed: bool, plan: &ModelPlan, alone: bool) -> Vec<String> {
    let mut lines = vec![
        "Of the rank that holds most. Held: between steps. Gathered, unreduced: whole blocks besides, while they".to_owned(),
        "compute. Not counted: activations, images, buffers of communication, the program itself.".to_owned(),
    ];
    if plan.tensor > 1 {
        lines.push(
            "Nor is what ranks that share layers send each other, which grows with the batch.".to_owned(),
        );
    }
    if timed {
        lines.push(
            "Step, and what of it waits for communication: predicted from one rank's step and the link."
                .to_owned(),
        );
    }
    if alone {
        lines.push("One rank shares with no other; with --ranks N strategies differ.".to_owned());
    }
    lines
}
