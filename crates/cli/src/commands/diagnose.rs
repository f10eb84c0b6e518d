//! `phalanx diagnose`: what the ranks of a run did when it broke.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::Program;
use crate::console::{note, out};
use phalanx_report::diagnose::Diagnosis;
use phalanx_run::RunFolder;

/// Explain why a run failed or hung: which rank others waited for, and where ranks first did different things.
#[derive(Debug, Args)]
pub(super) struct DiagnoseArgs {
    /// The run's folder.
    run: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Print the stacks of all ranks too.
    #[arg(long, conflicts_with = "json")]
    stacks: bool,
}

pub(super) fn run(program: &Program, args: &DiagnoseArgs) -> Result<(), CliError> {
    let folder = RunFolder::open(&args.run).map_err(CliError::failed)?;
    let found = Diagnosis::of(&folder.logs()).map_err(CliError::failed)?;
    if args.json {
        out(&serde_json::to_string_pretty(&found).map_err(CliError::failed)?);
        return Ok(());
    }
    found.text(args.stacks).iter().for_each(|line| out(line));
    if found.has_stacks() && !args.stacks {
        note(&format!("\nstacks of all ranks: {} diagnose {} --stacks", program.name(), args.run.display()));
    }
    Ok(())
}
