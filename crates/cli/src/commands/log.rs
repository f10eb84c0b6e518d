//! Where `tracing` goes: each rank into its own file, and what a trace has into its recorder.

use std::fs::File;
use std::path::Path;
use std::sync::Mutex;

use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::{EnvFilter, Layer as _};

use super::error::CliError;
use phalanx_run::open_to_append;
use phalanx_trace as trace;

/// Sends this process's log to a file from now on; `PHALANX_LOG` filters it (default `info`). If the run is `traced`, spans are
/// collected too.
pub(super) fn to_file(path: &Path, traced: bool) -> Result<(), CliError> {
    let open = || open_to_append(path);
    let file: File = open()
        .map_err(|error| CliError::failed(format!("cannot open the log {}: {error}", path.display())))?;
    let filter = EnvFilter::try_from_env("PHALANX_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt::layer().with_writer(Mutex::new(file)).with_ansi(false);
    let subscriber = tracing_subscriber::registry().with(log.with_filter(filter));
    // Ranks that are threads of one process share its log, so this is called once.
    let _ = match traced {
        true => tracing::subscriber::set_global_default(subscriber.with(trace::layer())),
        false => tracing::subscriber::set_global_default(subscriber),
    };
    Ok(())
}

/// Writes warnings to standard error, for commands without a log.
pub(super) fn warn_on_console() {
    let console =
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(false).without_time();
    let console = console.with_target(false).with_filter(LevelFilter::WARN);
    // Fails where a log was begun, which has the warnings.
    let _ = tracing::subscriber::set_global_default(tracing_subscriber::registry().with(console));
}
