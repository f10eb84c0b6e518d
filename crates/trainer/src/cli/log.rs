//! Where `tracing` goes: each rank into its own file.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::EnvFilter;

use super::CliError;

/// Sends this process's log to a file from now on; `PHALANX_LOG` filters it (default `info`).
pub(super) fn to_file(path: &Path) -> Result<(), CliError> {
    let open = || OpenOptions::new().create(true).append(true).open(path);
    let file: File = open()
        .map_err(|error| CliError::failed(format!("cannot open the log {}: {error}", path.display())))?;
    let filter = EnvFilter::try_from_env("PHALANX_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let subscriber = tracing_subscriber::fmt()
        .with_writer(Mutex::new(file))
        .with_ansi(false)
        .with_env_filter(filter)
        .finish();
    // Ranks that are threads of one process share its log, so this is called once.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}
