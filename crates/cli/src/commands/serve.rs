//! `phalanx serve`: the live page.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::error::CliError;
use super::interrupts::Interrupts;
use super::report::options;
use super::resolve::RUNS;
use crate::Program;
use crate::console::out;
use phalanx_report::live::{ServeError, ServeLimits, Server};

/// The interval at which signals are polled.
const POLL: Duration = Duration::from_millis(20);

/// Show the runs in a folder in a browser of this machine while they train: a list, live curves, the report of each.
/// Nothing is written.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The folder of runs.
    #[arg(value_name = "RUNS", default_value = RUNS)]
    runs: PathBuf,
    /// The port of 127.0.0.1; 0 for any that is free.
    #[arg(long, default_value_t = 7007)]
    port: u16,
}

pub(super) fn run(program: &Program, args: &ServeArgs) -> Result<(), CliError> {
    let interrupts = Interrupts::listen()?;
    let server = Server::start_with(&args.runs, args.port, ServeLimits::default(), options(program))
        .map_err(|error| match error {
            ServeError::PortTaken(_) | ServeError::Folder { .. } => CliError::Usage(error.to_string()),
            other => CliError::failed(other),
        })?;
    out(&format!("http://{}  (Ctrl-C ends it)", server.address()));
    while interrupts.count() == 0 {
        std::thread::sleep(POLL);
    }
    Ok(())
}
