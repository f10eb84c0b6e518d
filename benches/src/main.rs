//! The benchmarks: `cargo xtask bench kernels`, `bench train`, `bench loader`, `bench collectives`, `bench codecs`,
//! `bench memory`, `bench parallel`, `bench bubbles`, `bench strategies` and `bench versions`; and `cargo xtask chaos`, trainings with injected faults.
//!
//! Every figure is a median of rounds. With `--peer torch` PyTorch does the same work in the same call. Rounds of both
//! alternate, so that other load of the machine affects both; quote the ratio. The machine's limits are measured first:
//! the rate of fused multiply-adds in registers and of copies in memory. Results are also given as fractions of them.
#![forbid(unsafe_code)]

mod bubbles;
mod chaos;
mod codecs;
mod collectives;
mod kernels;
mod loader;
mod machine;
mod memory;
mod narrow;
mod numbers;
mod peer;
mod program;
mod rounds;
mod strategies;
mod train;
mod versions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Parser, Subcommand};
use serde_json::Value as Json;

/// The allocator of the program `phalanx`.
#[global_allocator]
static ALLOCATOR: phalanx_allocator::Allocator = phalanx_allocator::Allocator;

/// Measures Phalanx.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask bench", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Single operations, forward and backward
    Kernels(kernels::KernelArgs),
    /// Whole training steps: forward, loss, backward, optimizer
    Train(train::TrainArgs),
    /// Images of a loader, with and without augmentation
    Loader(loader::LoaderArgs),
    /// Operations between ranks: time and bandwidth
    Collectives(collectives::CollectivesArgs),
    /// Codecs of gradients: ratio, error, speed, and training over slow links
    Codecs(codecs::CodecsArgs),
    /// Memory of strategies, predicted and measured
    Memory(memory::MemoryArgs),
    /// Language models cut by samples, and by layers
    Parallel(train::ParallelArgs),
    /// Pipelines: the time in which ranks wait, by simulated clocks and by the formulas
    Bubbles(bubbles::BubblesArgs),
    /// All strategies in one table, by whole trainings
    Strategies(strategies::StrategiesArgs),
    /// Training steps of this build compared with another build
    Versions(versions::VersionsArgs),
    /// Trainings with killed, stopped and disconnected ranks, resumed to the end
    Chaos(chaos::ChaosArgs),
}

/// The arguments of all benchmarks.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Threads, of each rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    threads: u64,
    /// Rounds, for the medians
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Also do the work with this library, in alternation
    #[arg(long, value_enum)]
    peer: Option<peer::Library>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl Common {
    fn threads(&self) -> usize {
        usize::try_from(self.threads).unwrap_or(usize::MAX)
    }

    fn write(&self, results: &Json) -> anyhow::Result<()> {
        write(self.json.as_deref(), results)
    }
}

/// Writes results to a file, if one is given.
fn write(path: Option<&Path>, results: &Json) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(results)? + "\n";
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn main() -> ExitCode {
    program::as_phalanx().unwrap_or_else(|| match measure() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    })
}

fn measure() -> anyhow::Result<()> {
    if collectives::as_rank()? || codecs::as_rank()? {
        return Ok(());
    }
    match Cli::parse().command {
        Command::Kernels(args) => kernels::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Loader(args) => loader::run(&args),
        Command::Collectives(args) => collectives::run(&args),
        Command::Codecs(args) => codecs::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Parallel(args) => train::run_parallel(&args),
        Command::Bubbles(args) => bubbles::run(&args),
        Command::Strategies(args) => strategies::run(&args),
        Command::Versions(args) => versions::run(&args),
        Command::Chaos(args) => chaos::run(&args),
    }
}
