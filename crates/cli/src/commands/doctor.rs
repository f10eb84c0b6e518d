//! `phalanx doctor`: the findings on this machine, which belong into a bug report, and between hosts.

mod gpus;
mod hosts;
mod machine;

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use crate::console::{Verbosity, out};

/// Check this machine, or all hosts of a job: devices, libraries, links, clocks and shared folders.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Check the hosts on which a launcher has started this, as in `srun phalanx doctor --hosts`.
    #[arg(long)]
    hosts: bool,
    /// A file or folder that must be the same on all hosts.
    #[arg(long, value_name = "PATH", requires = "hosts")]
    data: Option<PathBuf>,
    /// The factor above the median of all pairs at which two hosts count as too slow.
    #[arg(long, default_value_t = 3.0, requires = "hosts")]
    slow: f64,
    /// Print JSON, with all details.
    #[arg(long, conflicts_with = "hosts")]
    json: bool,
}

pub(super) fn run(args: &DoctorArgs) -> Result<(), CliError> {
    if args.hosts {
        return hosts::run(args.data.as_deref(), args.slow);
    }
    let found = machine::Findings::of_this_machine();
    if args.json {
        out(&serde_json::to_string_pretty(&found).map_err(CliError::failed)?);
        return Ok(());
    }
    let is_verbose = Verbosity::get() == Verbosity::Verbose;
    found.lines(is_verbose).iter().for_each(|line| out(line));
    Ok(())
}
