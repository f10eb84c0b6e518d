//! `phalanx train --nnodes`: the ranks of one host among several, of each of which somebody starts one process, such as a pod.
//!
//! The options are torchrun's. The process starts the same command once for each of its ranks, without these options and with the
//! variables that torchrun would set, and holds them as `--ranks` does.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use super::interrupts::{Interrupts, announce};
use super::train::TrainArgs;
use super::{CliError, launched};
use crate::Program;
use phalanx_launch::{Ended, Place, Replacements, Supervisor};
use phalanx_run::{RunFolder, host_name};
use phalanx_trainer::config::Resolved;
use phalanx_trainer::engine::{self, Task};

/// The port where ranks of several hosts meet unless told otherwise, as torchrun has it.
const PORT: u16 = 29_500;

/// The options, which ranks do not get.
const OPTIONS: [&str; 5] = ["--nnodes", "--node-rank", "--nproc-per-node", "--master-addr", "--master-port"];

/// One host of several.
#[derive(Debug, Clone, Args)]
pub(super) struct NodeArgs {
    /// Starts the ranks of this host alone, one of so many of each of which somebody starts this same command, as pods are. The run's
    /// folder (--out) must be one that all see.
    #[arg(long, value_name = "N", requires = "node_rank", requires = "master_addr", requires = "out",
        conflicts_with_all = ["hosts", "tui", "ranks", "servers"])]
    nnodes: Option<usize>,
    /// With --nnodes: which of the hosts this is, from 0.
    #[arg(long, value_name = "K", requires = "nnodes")]
    node_rank: Option<usize>,
    /// With --nnodes: how many ranks each host has [default: 1].
    #[arg(long, value_name = "N", requires = "nnodes")]
    nproc_per_node: Option<usize>,
    /// With --nnodes: a name or an address of host 0.
    #[arg(long, value_name = "HOST", requires = "nnodes")]
    master_addr: Option<String>,
    /// With --nnodes: the port where rank 0 listens there [default: 29500].
    #[arg(long, value_name = "PORT", requires = "nnodes")]
    master_port: Option<u16>,
}

/// Where a host is among the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) nodes: usize,
    rank: usize,
    ranks: usize,
    master: String,
    port: u16,
}

impl NodeArgs {
    /// Whether any of the options is given.
    pub(super) fn is_given(&self) -> bool {
        self.nnodes.is_some()
    }

    /// The host's place, if these are given.
    pub(super) fn place(&self) -> Result<Option<Node>, CliError> {
        let (Some(nodes), Some(rank), Some(master)) = (self.nnodes, self.node_rank, &self.master_addr) else {
            return Ok(None);
        };
        let ranks = self.nproc_per_node.unwrap_or(1);
        let port = self.master_port.unwrap_or(PORT);
        if rank >= nodes || ranks == 0 || port == 0 {
            return Err(CliError::Usage(format!(
                "--node-rank {rank} of --nnodes {nodes} with --nproc-per-node {ranks} at port {port}: hosts count from 0, and ranks and ports \
                 from 1"
            )));
        }
        Ok(Some(Node { nodes, rank, ranks, master: master.clone(), port }))
    }
}

impl Node {
    /// How many ranks there are on all hosts.
    pub(super) fn world_size(&self) -> usize {
        self.nodes.saturating_mul(self.ranks)
    }
}

/// Starts the ranks of this host and watches them to their end: of all if one fails, and after a signal of those of all hosts.
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
    let out = args.out.as_deref().ok_or_else(|| CliError::Usage("--nnodes needs --out DIR".to_owned()))?;
    let folder = if args.resume { RunFolder::open(out) } else { RunFolder::join(out) };
    let folder = folder.map_err(CliError::failed)?;
    let given: Vec<OsString> = std::env::args_os().skip(1).collect();
    let given = without_place(given).into_iter().map(OsString::into_string).collect::<Result<Vec<_>, _>>();
    let arguments =
        given.map_err(|word| CliError::Usage(format!("{} is no text", Path::new(&word).display())))?;
    let survives = config.elastic().is_some() || config.sync.min_workers > 0;
    let supervisor = Supervisor {
        program: std::env::current_exe().map_err(CliError::failed)?,
        arguments,
        ranks: node.ranks,
        logs: folder.logs(),
        // How many must be left of all hosts' ranks, those say themselves.
        least: survives.then_some(1),
        replacements: Replacements::default(),
        secret_file: None,
        quiet: false,
        place: Some(Place {
            first: node.rank * node.ranks,
            world_size: node.world_size(),
            master: node.master.clone(),
            host: host_name(),
            environment: BTreeMap::from([("MASTER_PORT".to_owned(), node.port.to_string())]),
            secret: None,
        }),
        interrupted_code: Some(args.interrupted_code).filter(|code| *code > 0),
    };
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
        Ended::Finished => return Ok(()),
        Ended::Interrupted => (String::new(), args.interrupted_code),
        Ended::BeforeMeeting => (
            format!(
                "{}: told to end while the ranks looked for each other; nothing was trained",
                program.name()
            ),
            interrupts.exit_code(),
        ),
        Ended::Aborted => ("aborted".to_owned(), interrupts.exit_code()),
    };
    Err(CliError::Ended { message, code })
}

/// A command line without what says where this host is.
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

    #[test]
    fn places_that_cannot_be_are_refused() {
        let args = |nodes, rank, ranks| NodeArgs {
            nnodes: Some(nodes),
            node_rank: Some(rank),
            nproc_per_node: Some(ranks),
            master_addr: Some("a".to_owned()),
            master_port: None,
        };
        let place = args(2, 1, 4).place().expect("sound").expect("given");
        assert_eq!((place.world_size(), place.rank * place.ranks, place.port), (8, 4, PORT));
        for (nodes, rank, ranks) in [(2, 2, 1), (0, 0, 1), (1, 0, 0)] {
            assert!(args(nodes, rank, ranks).place().is_err(), "{nodes} {rank} {ranks}");
        }
    }
}
