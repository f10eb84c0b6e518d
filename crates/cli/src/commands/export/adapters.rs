//! The adapters of a run alone, as a folder in the format of peft.

use phalanx_checkpoint::ExportOptions;
use phalanx_run::{sync_folder, write_aside};
use phalanx_weights::ModelAdapters;

use super::{ExportArgs, Exported, folder, write_weights};
use crate::Program;
use crate::commands::error::CliError;
use crate::console::out;

/// Writes the folder.
///
/// # Errors
/// If the run has no adapters, or a file cannot be written.
pub(super) fn write(program: &Program, args: &ExportArgs) -> Result<(), CliError> {
    let exported = Exported::of_run(program, args)?;
    let adapters = exported.adapters.as_ref().ok_or_else(|| {
        CliError::Usage(
            "--adapters is for runs with adapters, and this one was trained with lora.rank = 0".to_owned(),
        )
    })?;
    folder::create(&args.out)?;
    let names = |name: &str| adapters.name_there(name);
    let options = ExportOptions { averages: args.ema, names: Some(&names), ..ExportOptions::default() };
    let written = write_weights(&exported.checkpoint, &args.out.join(ModelAdapters::TENSORS), &options)?;
    let file = args.out.join(ModelAdapters::DESCRIPTION);
    let text = adapters.description().map_err(CliError::failed)?;
    write_aside(&file, text.as_bytes())
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", file.display())))?;
    sync_folder(&args.out).map_err(CliError::failed)?;
    out(&format!("{} ({written})", args.out.display()));
    Ok(())
}
