//! `phalanx export`: one safetensors file out of a checkpoint, for PyTorch and other programs.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use crate::console::out;
use phalanx_checkpoint::Checkpoint;
use phalanx_run::RunFolder;
use phalanx_trainer::engine::CheckpointChoice;

/// Write the parameters and buffers of a checkpoint into one safetensors file, under the names that PyTorch uses.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A run's folder, of which the newest complete checkpoint is taken, or a checkpoint's own (`…/checkpoints/step-N`).
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    from: PathBuf,
    /// The file to write.
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long)]
    best: bool,
    /// Write the averaged parameters (train.ema) where there are some.
    #[arg(long)]
    ema: bool,
}

pub(super) fn run(args: &ExportArgs) -> Result<(), CliError> {
    let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let checkpoint = find(&args.from, choice)?;
    let exported = checkpoint.export(&args.out, args.ema).map_err(CliError::failed)?;
    let averaged = match args.ema {
        true => format!(", {} of them averages", exported.averaged),
        false => String::new(),
    };
    out(&format!(
        "{} ({} tensors{averaged}, after step {})",
        args.out.display(),
        exported.tensors,
        checkpoint.step()
    ));
    Ok(())
}

/// The checkpoint in a folder, or one of the run in a folder.
pub(super) fn find(from: &Path, choice: CheckpointChoice) -> Result<Checkpoint, CliError> {
    if from.join("checkpoint.json").is_file() {
        if choice == CheckpointChoice::Best {
            return Err(CliError::Usage(format!("--best is for a run; {} is a checkpoint", from.display())));
        }
        return Checkpoint::open(from).map_err(CliError::failed);
    }
    if !from.join("config.toml").is_file() {
        let from = from.display();
        return Err(CliError::Usage(format!(
            "{from} is neither a run (it has no config.toml) nor a checkpoint (it has no checkpoint.json)"
        )));
    }
    let folder = RunFolder::open(from).map_err(CliError::failed)?;
    choice.open(&folder).map_err(CliError::failed)
}
