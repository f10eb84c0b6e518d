//! The benchmarks: `cargo xtask bench kernels`, `bench train`, `bench collectives`, `bench codecs`, `bench memory`,
//! `bench strategies` and `bench versions`; and `cargo xtask chaos`, trainings that are disturbed.
//!
//! Every figure is a median of rounds. With `--peer torch` the same work is done by PyTorch in the same call, one
//! round of ours and one of theirs in turn, so that other load of the machine meets both; the ratio is the
//! figure to quote. The machine's own limits, the rate of fused multiply-adds in registers and of copies in
//! memory, are measured first, and results are also given as parts of them.
#![forbid(unsafe_code)]

mod chaos;
mod codecs;
mod collectives;
mod kernels;
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

/// Without it every step faults its buffers in anew; the programs that train use the same.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
    /// Operations between ranks: time and bandwidth
    Collectives(collectives::CollectivesArgs),
    /// Codecs of gradients: ratio, error, speed, and training over slow links
    Codecs(codecs::CodecsArgs),
    /// Memory of strategies, predicted and measured
    Memory(memory::MemoryArgs),
    /// All strategies in one table, by whole trainings
    Strategies(strategies::StrategiesArgs),
    /// Training steps of this build next to those of another
    Versions(versions::VersionsArgs),
    /// Trainings that are killed, stopped and cut off, and resumed
    Chaos(chaos::ChaosArgs),
}

/// The arguments of all benchmarks.
#[derive(Debug, Clone, Args)]
struct Common {
    /// Threads, of each rank
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    threads: u64,
    /// Rounds that the medians are taken over
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Does the same work with this library in turn
    #[arg(long, value_enum)]
    peer: Option<peer::Library>,
    /// Writes the results here too
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

/// Writes results to a file, if one was named.
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
        Command::Collectives(args) => collectives::run(&args),
        Command::Codecs(args) => codecs::run(&args),
        Command::Memory(args) => memory::run(&args),
        Command::Strategies(args) => strategies::run(&args),
        Command::Versions(args) => versions::run(&args),
        Command::Chaos(args) => chaos::run(&args),
    }
}
