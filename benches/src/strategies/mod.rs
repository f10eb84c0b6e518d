//! `bench strategies`: one table over all strategies, by whole trainings of the program.
//!
//! Every row trains the same model on the same images, with the same seed and the same global batch. Each rank is a
//! process. The first row has one rank. The values of a row come from its run's `summary.json`.

mod chart;
mod figures;
mod report;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use phalanx_sharding::STRATEGIES;

use self::figures::{Row, RunMetrics};
use self::report::Report;
use crate::program::{self, Training};

/// The arguments of a measurement.
#[derive(Debug, Args)]
pub(crate) struct StrategiesArgs {
    /// The model, as in model.kind
    #[arg(long, default_value = "resnet18")]
    model: String,
    /// The images: shapes, cifar10=PATH, or folder=PATH
    #[arg(long, default_value = "shapes", value_name = "KIND=PATH")]
    data: String,
    /// Ranks, each a process; the first row has one
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Images in a step over all ranks, the same in every row
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Passes over the training images
    #[arg(long, default_value_t = 1)]
    epochs: usize,
    /// Stop after this step instead
    #[arg(long)]
    steps: Option<u64>,
    /// At most this many training images; 0 = all
    #[arg(long, default_value_t = 0)]
    limit: usize,
    /// At most this many test images; 0 = all
    #[arg(long, default_value_t = 0)]
    test_limit: usize,
    /// Height and width of the images
    #[arg(long, default_value_t = 32)]
    image_size: usize,
    /// Threads of each rank, the same in every row
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// The seed of all random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Override a configuration key of all trainings
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The folder of results and runs, which must be empty [default: runs/strategies-TIME]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl StrategiesArgs {
    /// The training of a row.
    fn training(&self, name: &str, strategy: &str, ranks: usize) -> Training {
        let kind = self.data.split('=').next().unwrap_or_default();
        // The preset of the model and the images sets the optimizer and the augmentations.
        let preset = format!("{kind}-{}", self.model);
        let mut config = String::new();
        if phalanx::program().catalogue().preset(&preset).is_some() {
            let _ = writeln!(config, "extends = {preset:?}\n");
        }
        let _ = write!(
            config,
            "[model]\nkind = {:?}\nimage_size = {}\n\n[data]\nlimit = {}\n\n[train]\nranks = {ranks}\n\
             strategy = {strategy:?}\nglobal_batch = {}\nepochs = {}\nstop_step = {}\nthreads = {}\nseed = {}\n\n\
             [eval]\nlimit = {}\nevery = 0\n\n[checkpoint]\nenabled = false\n",
            self.model,
            self.image_size,
            self.limit,
            self.batch,
            self.epochs,
            self.steps.unwrap_or(0),
            self.threads,
            self.seed,
            self.test_limit,
        );
        Training { name: name.to_owned(), config, data: self.data.clone(), sets: self.sets.clone() }
    }

    /// Names, strategies and ranks of the rows.
    fn rows(&self) -> Vec<(String, &'static str, usize)> {
        let alone = ("one-rank".to_owned(), "ddp", 1);
        let others = STRATEGIES
            .iter()
            .filter(|row| row.is_bulk_synchronous())
            .map(|row| (row.name.to_owned(), row.name, self.ranks));
        std::iter::once(alone).chain(others).collect()
    }
}

/// Runs one row, showing its steps.
fn measure(training: &Training, folder: &Path) -> Result<RunMetrics> {
    training.resolve(folder)?.validate()?;
    let mut shown = Instant::now();
    let summary = training.run(folder, |line| {
        // Prints only some steps, to show progress.
        if shown.elapsed().as_secs() >= 5 {
            println!("  {line}");
            shown = Instant::now();
        }
    })?;
    ensure!(summary.status == "finished", "the run was {}", summary.status);
    Ok(RunMetrics::of(&summary))
}

pub(crate) fn run(args: &StrategiesArgs) -> Result<()> {
    ensure!(args.ranks > 1, "--ranks {}: strategies differ among two ranks or more", args.ranks);
    ensure!(args.batch > 0 && args.epochs > 0, "--batch and --epochs are at least 1");
    let folder = program::folder(args.out.as_deref(), "strategies")?;
    let rows = args.rows();
    let mut report = Report::new(args);
    for (index, (name, strategy, ranks)) in rows.iter().enumerate() {
        println!("[{}/{}] {name}: {ranks} ranks of {} threads", index + 1, rows.len(), args.threads);
        let outcome = measure(&args.training(name, strategy, *ranks), &folder);
        match &outcome {
            Ok(figures) => println!("  {:.1} samples/s", figures.samples_per_second),
            Err(error) => println!("  failed: {error:#}"),
        }
        report.rows.push(Row {
            name: name.clone(),
            ranks: *ranks,
            outcome: outcome.map_err(|error| format!("{error:#}")),
        });
        // Written after every row, so that an interrupted measurement keeps its rows.
        report.write(&folder)?;
    }
    println!("\n{}", report.markdown());
    println!("results in {}", folder.display());
    let failed = report.rows.iter().filter(|row| row.outcome.is_err()).count();
    ensure!(failed == 0, "{failed} of {} rows failed; the table says why", rows.len());
    Ok(())
}
