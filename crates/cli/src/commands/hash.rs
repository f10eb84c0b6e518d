//! `phalanx hash`: whether two runs have come to the same weights, to the bit.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::trained_model::find_checkpoint;
use crate::console::out;
use phalanx_checkpoint::{Checkpoint, CheckpointError, MODEL};
use phalanx_run::RunFolder;
use phalanx_trainer::engine::CheckpointChoice;

/// Print the hash of a checkpoint's parameters and buffers. Equal bits have equal hashes, under every strategy and
/// number of ranks.
#[derive(Debug, Args)]
pub(super) struct HashArgs {
    /// A run's folder, of which the newest complete checkpoint is taken, or a checkpoint's own (`…/checkpoints/step-N`).
    #[arg(value_name = "RUN")]
    from: PathBuf,
    /// Print the hashes of all complete checkpoints of the run, the oldest first.
    #[arg(long)]
    history: bool,
    /// Print the hashes of averages and of optimizer state too.
    #[arg(long)]
    state: bool,
    /// Compute the hashes from the files. Fail if the index differs.
    #[arg(long)]
    verify: bool,
}

pub(super) fn run(args: &HashArgs) -> Result<(), CliError> {
    let checkpoints = match args.history {
        false => vec![find_checkpoint(&args.from, CheckpointChoice::Newest)?.0],
        true => {
            let folder = RunFolder::open(&args.from).map_err(CliError::failed)?;
            let all = Checkpoint::list(&folder.checkpoints()).into_iter();
            // One that is not complete has no hash; the newest that is must be there.
            let found: Vec<_> = all.filter_map(|(_, path)| Checkpoint::open(&path).ok()).collect();
            if found.is_empty() {
                vec![find_checkpoint(&args.from, CheckpointChoice::Newest)?.0]
            } else {
                found
            }
        }
    };
    for checkpoint in checkpoints {
        for line in lines(&checkpoint, args).map_err(CliError::failed)? {
            out(&line);
        }
    }
    Ok(())
}

/// Renders a checkpoint's hashes, the weights first.
fn lines(checkpoint: &Checkpoint, args: &HashArgs) -> Result<Vec<String>, CheckpointError> {
    let hashes = if args.verify { checkpoint.computed_hashes()? } else { checkpoint.hashes()? };
    if let Some((kind, _)) = hashes
        .iter()
        .find(|(kind, hash)| checkpoint.hashes().is_ok_and(|told| told.get(*kind) != Some(*hash)))
    {
        let problem = format!("what it holds of {kind} has another hash than its index says");
        return Err(CheckpointError::Unfit { path: checkpoint.folder().to_owned(), problem });
    }
    let wanted = hashes.iter().filter(|(kind, _)| args.state || *kind == MODEL);
    let (model, others): (Vec<_>, Vec<_>) = wanted.partition(|(kind, _)| *kind == MODEL);
    let step = checkpoint.step();
    Ok(model.into_iter().chain(others).map(|(kind, hash)| format!("{hash}  step {step}  {kind}")).collect())
}
