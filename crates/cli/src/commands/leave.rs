//! `phalanx leave`: has ranks of a run leave the others, who go on.

use std::path::PathBuf;

use clap::Args;

use super::error::CliError;
use super::resolve::configuration_of;
use crate::Program;
use crate::console::out;
use phalanx_run::{Request, RunActivity, RunFolder, RunState};

/// Let ranks leave an elastic run, one after the other, each between two steps. The other ranks continue.
#[derive(Debug, Args)]
pub(super) struct LeaveArgs {
    /// The run's folder.
    folder: PathBuf,
    /// The ranks, by their numbers in the run (`members` in state.json).
    #[arg(long, value_name = "N", value_delimiter = ',', required_unless_present = "host")]
    rank: Vec<usize>,
    /// All ranks of a host, by the name that the run has for it.
    #[arg(long)]
    host: Option<String>,
}

pub(super) fn run(program: &Program, args: &LeaveArgs) -> Result<(), CliError> {
    let folder = RunFolder::open(&args.folder).map_err(CliError::failed)?;
    let config = configuration_of(program, &folder)?.config;
    let shown = folder.path().display();
    let least = config.elastic().map(|bounds| *bounds.start()).ok_or_else(|| {
        CliError::Usage(format!(
            "{shown} is of a run whose world does not change; begin one with --elastic MIN:MAX"
        ))
    })?;
    let state = RunState::read(&folder.state()).map_err(CliError::failed)?;
    if matches!(state.doing, RunActivity::Ended | RunActivity::Failed) {
        return Err(CliError::Usage(format!("the run in {shown} has ended")));
    }
    let members = &state.members;
    let mut leaving = args.rank.clone();
    if let Some(host) = &args.host {
        let of_host = members.iter().filter(|(_, on)| *on == host).map(|(number, _)| *number);
        let before = leaving.len();
        leaving.extend(of_host);
        if leaving.len() == before {
            let mut hosts: Vec<&str> = members.values().map(String::as_str).collect();
            hosts.dedup();
            return Err(CliError::Usage(format!("no rank is on {host}; ranks are on {}", hosts.join(", "))));
        }
    }
    leaving.sort_unstable();
    leaving.dedup();
    if let Some(unknown) = leaving.iter().find(|number| !members.contains_key(number)) {
        let known: Vec<String> = members.keys().map(ToString::to_string).collect();
        return Err(CliError::Usage(format!("rank {unknown} does not take part; {} do", known.join(", "))));
    }
    let left = members.len().saturating_sub(leaving.len());
    if left < least {
        return Err(CliError::Usage(format!(
            "{left} ranks would be left, and elastic.min = {least}; `train --resume` goes on after a stop"
        )));
    }
    for number in &leaving {
        Request::Leave(*number).post(&folder.requests()).map_err(CliError::failed)?;
    }
    let names: Vec<String> = leaving.iter().map(ToString::to_string).collect();
    out(&format!("asked to leave {shown}: rank {}", names.join(", ")));
    Ok(())
}
