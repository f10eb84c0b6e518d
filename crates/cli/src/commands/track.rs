//! `phalanx track`: sends the metrics of runs to an experiment tracker.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::interrupts::Interrupts;
use crate::console::out;
use phalanx_report::track::{TrackTarget, send};

/// Send the metrics of runs to an experiment tracker, as the runs write them. Send finished runs at once.
#[derive(Debug, Args)]
pub(super) struct TrackArgs {
    /// The folders of the runs.
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<PathBuf>,
    /// The tracker: mlflow=DIR, the folder of MLflow's file store (mlruns).
    #[arg(long, value_name = "mlflow=DIR", value_parser = store)]
    to: PathBuf,
    /// The experiment that the runs belong to.
    #[arg(long, value_name = "NAME", default_value = "phalanx")]
    experiment: String,
}

/// Parses `mlflow=DIR`.
fn store(text: &str) -> Result<PathBuf, String> {
    match text.split_once('=') {
        Some(("mlflow", folder)) if !folder.is_empty() => Ok(PathBuf::from(folder)),
        Some(("wandb", _)) | None if text.starts_with("wandb") => {
            Err("W&B has no plain files; send to it with scripts/track_wandb.py".to_owned())
        }
        _ => Err("it must be mlflow=DIR".to_owned()),
    }
}

pub(super) fn run(args: &TrackArgs) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let target = TrackTarget { store: args.to.clone(), experiment: args.experiment.clone() };
    let sent = send(&args.runs, &target, &|| interrupts.count(), &mut out).map_err(CliError::failed)?;
    match sent {
        true => Ok(()),
        false => Err(CliError::Ended { message: String::new(), code: interrupts.exit_code() }),
    }
}
