//! Two builds of the benchmarks' program: the effect of a change on speed and memory of training steps.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::{Value as Json, json};

use crate::rounds::median;

/// The arguments of a comparison.
#[derive(Debug, Args)]
pub(crate) struct VersionsArgs {
    /// The program of the other version: its target/release/phalanx-bench
    #[arg(long, value_name = "PROGRAM")]
    before: PathBuf,
    /// Models, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "resnet18,mobilenetv2,cvae")]
    model: Vec<String>,
    /// Strategies, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "none,ddp,fsdp")]
    strategy: Vec<String>,
    /// Ranks, as threads of each process
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// Images of each rank in a step
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Rounds of each run
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Runs of each program for each model and strategy, in alternation
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    runs: u64,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The costs of one run of a program.
#[derive(Debug, Clone, Copy)]
struct RunCosts {
    seconds: f64,
    peak_bytes: f64,
}

/// Runs `bench train` of `program` once, in a process of its own.
fn measure(
    program: &Path,
    args: &VersionsArgs,
    model: &str,
    strategy: &str,
    results: &Path,
) -> Result<RunCosts> {
    let mut command = Command::new(program);
    command.args(["train", "--model", model, "--strategy", strategy, "--threads", "1"]);
    for (option, value) in [("--ranks", args.ranks), ("--batch", args.batch), ("--rounds", args.rounds)] {
        command.arg(option).arg(value.to_string());
    }
    command.arg("--json").arg(results).stdin(Stdio::null()).stdout(Stdio::null());
    let status = command.status().with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(status.success(), "{} ended with {status}", program.display());
    let text = std::fs::read_to_string(results)?;
    let found: Json = serde_json::from_str(&text)?;
    let number = |value: &Json, name: &str| {
        let missing = || format!("{} reports no {name}", program.display());
        value.get(name).and_then(Json::as_f64).with_context(missing)
    };
    Ok(RunCosts {
        seconds: number(&found["strategies"][0], "seconds_per_step")?,
        peak_bytes: number(&found, "peak_memory_bytes")?,
    })
}

pub(crate) fn run(args: &VersionsArgs) -> Result<()> {
    let own = std::env::current_exe()?;
    let results = std::env::temp_dir().join(format!("phalanx-versions-{}.json", std::process::id()));
    println!("medians of {} runs of {} rounds, the two programs in turn", args.runs, args.rounds);
    println!("model         strategy  before ms   after ms   speed   before MiB  after MiB");
    let mut rows = Vec::new();
    for model in &args.model {
        for strategy in &args.strategy {
            let once = |program: &Path| measure(program, args, model, strategy, &results);
            let (mut before, mut after) = (Vec::new(), Vec::new());
            for run in 0..args.runs {
                // The programs alternate in going first, so that drifts of the machine affect both.
                if run % 2 == 0 {
                    before.push(once(&args.before)?);
                    after.push(once(&own)?);
                } else {
                    after.push(once(&own)?);
                    before.push(once(&args.before)?);
                }
            }
            let middle =
                |found: &[RunCosts], of: fn(&RunCosts) -> f64| median(found.iter().map(of).collect());
            let [old, new] = [&before, &after].map(|found| middle(found, |found| found.seconds));
            let [old_peak, new_peak] = [&before, &after].map(|found| middle(found, |found| found.peak_bytes));
            // Pair by pair, as the speed of a shared machine drifts between pairs.
            let speed =
                median(before.iter().zip(&after).map(|(old, new)| old.seconds / new.seconds).collect());
            let mebibytes = |bytes: f64| bytes / f64::from(1 << 20);
            println!(
                "{model:<13} {strategy:<9} {:>9.1}  {:>9.1}  {speed:>5.3}x  {:>10.0}  {:>9.0}",
                old * 1e3,
                new * 1e3,
                mebibytes(old_peak),
                mebibytes(new_peak)
            );
            rows.push(json!({
                "model": model, "strategy": strategy, "before_seconds": old, "after_seconds": new, "speed": speed,
                "before_peak_bytes": old_peak, "after_peak_bytes": new_peak,
            }));
        }
    }
    // A leftover file does no harm.
    let _ = std::fs::remove_file(&results);
    crate::write(args.json.as_deref(), &json!({ "ranks": args.ranks, "batch": args.batch, "rows": rows }))
}
