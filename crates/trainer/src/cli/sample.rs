//! `phalanx sample`: pictures for prompts, from a trained run.

use std::path::PathBuf;

use clap::Args;

use super::{CliError, task_of};
use crate::Program;
use crate::console::out;
use crate::engine;
use crate::run::RunFolder;

/// Draws pictures for prompts with a trained run.
#[derive(Debug, Args)]
pub(super) struct SampleArgs {
    /// The run's folder.
    #[arg(long, value_name = "DIR")]
    run: PathBuf,
    /// What to draw; each gets a row of the grid.
    #[arg(long = "prompt", required = true, value_name = "TEXT")]
    prompts: Vec<String>,
    /// The picture to write.
    #[arg(long, value_name = "FILE.png")]
    out: PathBuf,
    /// Pictures for each prompt [default: as configured in sample.columns].
    #[arg(long)]
    columns: Option<u32>,
    /// What the noise is drawn from [default: as configured in train.seed].
    #[arg(long)]
    seed: Option<u64>,
}

pub(super) fn run(program: &Program, args: &SampleArgs) -> Result<(), CliError> {
    let folder = RunFolder::open(&args.run).map_err(CliError::failed)?;
    let mut resolved = program.catalogue().resolve_run(&folder.config())?;
    if let Some(columns) = args.columns {
        let option = format!("--columns {columns}");
        resolved.set_value(&option, "sample.columns", toml::Value::Integer(columns.into()))?;
    }
    resolved.validate()?;
    let seed = args.seed.unwrap_or(resolved.config.train.seed);
    let step = engine::sample_run(
        &task_of(program, &resolved.config)?,
        &folder,
        &resolved.config,
        &args.prompts,
        seed,
        &args.out,
    )
    .map_err(CliError::failed)?;
    out(&format!("{} (weights after step {step})", args.out.display()));
    Ok(())
}
