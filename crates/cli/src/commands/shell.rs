//! `phalanx completions` and `phalanx man`: files for shells and for `man`, from the definition of the commands.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use super::error::CliError;
use crate::console::out;
use phalanx_run::RunError;

/// Print completions for a shell.
#[derive(Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

/// Write manual pages, one for each command, into a folder.
#[derive(Debug, Args)]
pub(super) struct ManArgs {
    /// The folder, which is created if it does not exist.
    folder: PathBuf,
}

/// Prints the completions of `command`.
pub(super) fn completions(args: &CompletionsArgs, mut command: Command) {
    let name = command.get_name().to_owned();
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut text);
    out(String::from_utf8_lossy(&text).trim_end());
}

/// Writes the manual pages of `command` and its visible subcommands.
pub(super) fn man(args: &ManArgs, command: Command) -> Result<(), CliError> {
    let folder = &args.folder;
    std::fs::create_dir_all(folder).map_err(RunError::io("create", folder)).map_err(CliError::failed)?;
    let name = command.get_name().to_owned();
    clap_mangen::generate_to(command, folder)
        .map_err(RunError::io("write pages into", folder))
        .map_err(CliError::failed)?;
    out(&format!("{}; read with: man -l {}", folder.display(), folder.join(format!("{name}.1")).display()));
    Ok(())
}
