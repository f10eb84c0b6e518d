//! `phalanx train --nnodes`: the ranks of one host among several, each of which starts one process, such as a pod.
//!
//! The options are torchrun's. The process starts the same command once for each of its ranks, without these options and with the
//! variables that torchrun would set, and holds them as `--ranks` does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;

use super::error::CliError;
use super::interrupts::{Interrupts, announce};
use super::launched;
use super::node_args::Node;
use super::train_args::TrainArgs;
use crate::Program;
use phalanx_config::{Config, Resolved};
use phalanx_launch::{HostPlacement, Replacements, SECRET_FILE, Supervisor, SupervisorOutcome};
use phalanx_run::{RunFolder, host_name};
use phalanx_trainer::engine::{self, Task};

/// The options, which ranks do not get.
const OPTIONS: [&str; 5] = ["--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port"];

/// Starts the ranks of this host and waits for their end. If one fails, all end; a signal ends the ranks of all hosts.
pub(super) fn run(
    program: &Program,
    args: &TrainArgs,
    resolved: &Resolved,
    task: &Task,
    node: &Node,
) -> Result<(), CliError> {
    let config = &resolved.config;
    if engine::in_one_process(config) {
        return Err(CliError::Usage(format!(
            "--nnodes: train.strategy = {} has all ranks as threads of one process; --strategy ddp gives the same losses",
            config.train.strategy
        )));
    }
    launched::check_first(task, config)?;
    check_secret(node, config)?;
    let out = args.out.as_deref().ok_or_else(|| CliError::Usage("--nnodes needs --out DIR".to_owned()))?;
    let folder = if args.start.resume { RunFolder::open(out) } else { RunFolder::join(out) };
    let folder = folder.map_err(CliError::failed)?;
    let supervisor = supervisor(args, config, node, &folder)?;
    let interrupts = Interrupts::listen()?;
    let told = std::cell::Cell::new(false);
    let ended = supervisor.run(|| {
        let count = interrupts.count();
        if count == 1 && !told.replace(true) {
            announce();
        }
        count
    });
    let (message, code) = match ended.map_err(CliError::failed)? {
        SupervisorOutcome::Finished => return Ok(()),
        SupervisorOutcome::Interrupted => (String::new(), args.interrupted_code),
        SupervisorOutcome::BeforeMeeting => (
            format!(
                "{}: told to end while the ranks looked for each other; nothing was trained",
                program.name()
            ),
            interrupts.exit_code(),
        ),
        SupervisorOutcome::Aborted => ("aborted".to_owned(), interrupts.exit_code()),
    };
    Err(CliError::Ended { message, code })
}

/// Refuses hosts whose ranks have no secret, before any rank starts.
fn check_secret(node: &Node, config: &Config) -> Result<(), CliError> {
    let is_loopback =
        node.master == "localhost" || node.master.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if node.nodes == 1 || is_loopback || std::env::var_os(SECRET_FILE).is_some() {
        return Ok(());
    }
    let who = format!("--nnodes {}", node.nodes);
    engine::require_secret(config, &who).map_err(|error| CliError::Usage(error.to_string()))
}

/// Returns the supervisor of this host's ranks. They run the same command without the options of [`OPTIONS`].
fn supervisor(
    args: &TrainArgs,
    config: &Config,
    node: &Node,
    folder: &RunFolder,
) -> Result<Supervisor, CliError> {
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let given = without_place(given).into_iter().map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let arguments =
        given.map_err(|word| CliError::Usage(format!("{} is no text", Path::new(&word).display())))?;
    let survives = config.elastic().is_some() || config.sync.min_workers > 0;
    Ok(Supervisor {
        program: std::env::current_exe().map_err(CliError::failed)?,
        arguments,
        ranks: node.ranks,
        logs: folder.logs(),
        // The ranks check themselves how many of all hosts are left.
        least: survives.then_some(1),
        replacements: Replacements::default(),
        secret_file: None,
        quiet: false,
        place: Some(HostPlacement {
            first: node.rank * node.ranks,
            world_size: node.world_size(),
            master: node.master.clone(),
            host: host_name(),
            environment: BTreeMap::from([("MASTER_PORT".to_owned(), node.port.to_string())]),
            secret: None,
        }),
        interrupted_code: Some(args.interrupted_code).filter(|code| *code > 0),
    })
}

/// Returns a command line without the options that place this host among the others.
fn without_place(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let name = text.split_once('=').map_or(&*text, |(name, _)| name);
        if !OPTIONS.contains(&name) {
            kept.push(argument);
        } else if name == text {
            // Its value is the next word.
            let _ = arguments.next();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_started_by_the_same_command_without_the_place() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let given = "train tiny --nnodes 2 --set a.b=1 --node-rank=1 --nproc-per-node 4 --master-addr pod-0 --out x --master-port=7";
        assert_eq!(without_place(words(given)), words("train tiny --set a.b=1 --out x"));
    }
}
