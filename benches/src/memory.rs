//! `bench memory`: predicted and measured memory of strategies.
//!
//! Trains a multilayer perceptron of the requested size for some steps on drawn images. The memory of a rank is the
//! peak of its process (`VmHWM`). It includes the program, images, activations and communication buffers. Checkpoints
//! and evaluation are off, because a checkpoint copies the rank's state.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use phalanx_models::MlpConfig;
use phalanx_run::Summary;
use phalanx_sharding::plan::MemoryPlan;
use phalanx_sharding::{STRATEGIES, Strategy};
use phalanx_trainer::engine::plan_memory;
use serde_json::{Value as Json, json};

use crate::program::{self, Training};

/// The arguments of a measurement.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// The model, as in model.kind
    #[arg(long, default_value = "mlp")]
    model: String,
    /// Approximate number of parameters of an mlp; determines its width
    #[arg(long, default_value_t = 400e6)]
    parameters: f64,
    /// Hidden layers of an mlp
    #[arg(long, default_value_t = 24)]
    depth: usize,
    /// Strategies, separated by commas; or all
    #[arg(long, default_value = "fsdp", value_delimiter = ',')]
    strategy: Vec<String>,
    /// Ranks, each a process
    #[arg(long, default_value_t = 4)]
    ranks: usize,
    /// Steps
    #[arg(long, default_value_t = 3)]
    steps: u64,
    /// Images of each rank in a step
    #[arg(long, default_value_t = 2)]
    batch: usize,
    /// Height and width of the images
    #[arg(long, default_value_t = 32)]
    image_size: usize,
    /// The optimizer, as in optim.kind
    #[arg(long, default_value = "adam")]
    optimizer: String,
    /// Threads of each rank
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Override a configuration key of the trainings
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The folder of the runs, which must be empty [default: runs/memory-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Returns the width of hidden layers for about this number of parameters.
fn width(parameters: f64, depth: usize, inputs: usize, num_classes: usize) -> usize {
    // (depth - 1) w^2 + (inputs + depth + classes) w = P.
    let (a, b) = (depth.saturating_sub(1) as f64, (inputs + depth + num_classes) as f64);
    let exact =
        if a == 0.0 { parameters / b } else { ((b * b + 4.0 * a * parameters).sqrt() - b) / (2.0 * a) };
    let error = |width: &usize| {
        let config = MlpConfig { inputs, width: *width, depth, num_classes };
        (config.num_parameters() as f64 - parameters).abs()
    };
    let near = [exact.floor().max(1.0) as usize, exact.ceil().max(1.0) as usize];
    near.into_iter().min_by(|a, b| error(a).total_cmp(&error(b))).unwrap_or(1)
}

impl MemoryArgs {
    fn training(&self, strategy: &str) -> Training {
        let batch = self.batch * self.ranks;
        // Shapes have seven classes. A small error of the width does no harm.
        let width = width(self.parameters, self.depth, 3 * self.image_size * self.image_size, 7);
        let config = format!(
            "[model]\nkind = {:?}\nimage_size = {}\nmlp_width = {width}\nmlp_depth = {}\n\n[data]\nimages = {}\n\
             test_images = 1\nprefetch = 1\n\n[train]\nranks = {}\nstrategy = {strategy:?}\nglobal_batch = {batch}\n\
             threads = {}\nsteps = {}\n\n[optim]\nkind = {:?}\nlr = 1e-4\n\n[log]\nevery = 1\n\n[eval]\n\
             enabled = false\n\n[checkpoint]\nenabled = false\n",
            self.model,
            self.image_size,
            self.depth,
            2 * batch,
            self.ranks,
            self.threads,
            self.steps,
            self.optimizer,
        );
        Training { name: strategy.to_owned(), config, data: "shapes".to_owned(), sets: self.sets.clone() }
    }

    fn strategies(&self) -> Result<Vec<Strategy>> {
        if self.strategy.iter().any(|name| name == "all") {
            return Ok(STRATEGIES.iter().filter(|row| row.is_bulk_synchronous()).copied().collect());
        }
        Ok(self.strategy.iter().map(|name| Strategy::named(name)).collect::<Result<_, _>>()?)
    }
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Compares measured and planned memory, each of the rank with the most.
fn row(plan: &MemoryPlan, ddp: &MemoryPlan, summary: &Summary) -> Json {
    let most = |of: fn(&phalanx_run::RankSummary) -> u64| summary.ranks.iter().map(of).max().unwrap_or(0);
    let peak = program::peak_memory(summary);
    let held = plan.largest_rank();
    let mut row = json!({
        "strategy": plan.strategy.name,
        "planned": {
            "parameter_bytes": held.parameters, "gradient_bytes": held.gradients,
            "optimizer_bytes": held.optimizer + held.averages, "held_bytes": held.total(),
            "gathered_bytes": plan.gathered, "unreduced_bytes": plan.unreduced, "peak_bytes": plan.peak(),
            "bytes_sent_per_step": plan.sent_per_step,
        },
        "measured": {
            "parameter_bytes": most(|rank| rank.parameter_bytes), "gradient_bytes": most(|rank| rank.gradient_bytes),
            "optimizer_bytes": most(|rank| rank.optimizer_bytes), "gathered_bytes": most(|rank| rank.gathered_bytes),
            "peak_memory_bytes": peak,
            "bytes_sent_per_step": most(|rank| rank.step_bytes_sent) / summary.step.max(1),
        },
        "ddp_held_bytes": ddp.largest_rank().total(),
    });
    row["peak_of_ddp"] =
        peak.map_or(Json::Null, |peak| json!(peak as f64 / ddp.largest_rank().total() as f64));
    row
}

fn print(row: &Json) {
    let number = |side: &str, field: &str| row[side][field].as_u64();
    let shown = |side: &str, field: &str| {
        number(side, field).map_or_else(|| "unknown".to_owned(), |bytes| format!("{:.1}", mebibytes(bytes)))
    };
    println!("{}, MiB of the rank that holds most:", row["strategy"].as_str().unwrap_or_default());
    println!("  {:<22} {:>12} {:>12}", "", "predicted", "measured");
    for (name, planned, measured) in [
        ("parameters", "parameter_bytes", "parameter_bytes"),
        ("gradients", "gradient_bytes", "gradient_bytes"),
        ("optimizer state", "optimizer_bytes", "optimizer_bytes"),
        ("gathered", "gathered_bytes", "gathered_bytes"),
        ("sent a step", "bytes_sent_per_step", "bytes_sent_per_step"),
        ("most at once", "peak_bytes", "peak_memory_bytes"),
    ] {
        println!("  {name:<22} {:>12} {:>12}", shown("planned", planned), shown("measured", measured));
    }
    if let Some(ratio) = row["peak_of_ddp"].as_f64() {
        println!("  the whole process holds at most {ratio:.3} of what ddp holds by prediction");
    }
}

pub(crate) fn run(args: &MemoryArgs) -> Result<()> {
    ensure!(
        args.parameters >= 1.0 && args.parameters < 1e13,
        "--parameters {}: not in 1..1e13",
        args.parameters
    );
    ensure!(args.depth > 0, "--depth 0: an mlp has at least one hidden layer");
    ensure!(
        args.ranks > 0 && args.batch > 0 && args.steps > 0,
        "--ranks, --batch and --steps are at least 1"
    );
    let strategies = args.strategies()?;
    let folder = program::folder(args.out.as_deref(), "memory")?;
    let mut rows = Vec::new();
    let mut failed = 0;
    for (index, strategy) in strategies.iter().enumerate() {
        let training = args.training(strategy.name);
        let resolved = training.resolve(&folder)?;
        resolved.validate()?;
        let phalanx = phalanx::program();
        let task = phalanx.task_of(&resolved.config).ok_or_else(|| anyhow::anyhow!("no such task"))?;
        let plans = plan_memory(task, &resolved.config, &[Strategy::named("ddp")?, *strategy])?;
        let [ddp, plan] = plans.plans.as_slice() else { bail!("a plan for each strategy") };
        println!(
            "[{}/{}] {}: {}, {:.1} million parameters, {} ranks",
            index + 1,
            strategies.len(),
            strategy.name,
            plans.model,
            plans.parameters as f64 / 1e6,
            args.ranks
        );
        match training.run(&folder, |line| println!("  {line}")) {
            Ok(summary) => {
                let row = row(plan, ddp, &summary);
                print(&row);
                rows.push(row);
            }
            Err(error) => {
                failed += 1;
                println!("  failed: {error:#}");
                rows.push(json!({ "strategy": strategy.name, "error": format!("{error:#}") }));
            }
        }
    }
    let results =
        json!({ "model": args.model, "ranks": args.ranks, "optimizer": args.optimizer, "rows": rows });
    let path = folder.join("memory.json");
    crate::write(Some(&path), &results)?;
    crate::write(args.json.as_deref(), &results).context("the results are in the folder of the runs")?;
    println!("results in {}", path.display());
    ensure!(failed == 0, "{failed} of {} strategies failed", strategies.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_width_gives_the_parameters() {
        for (parameters, depth) in [(400e6, 24), (400e6, 6), (20e6, 8), (1e4, 1)] {
            let width = width(parameters, depth, 3072, 8);
            let found = MlpConfig { inputs: 3072, width, depth, num_classes: 8 }.num_parameters() as f64;
            // The width is a whole number, so the parameters change in steps.
            let step = (2 * depth * width + 3072) as f64;
            assert!((found - parameters).abs() <= step, "{parameters} in {depth}: {width} gives {found}");
        }
    }
}
