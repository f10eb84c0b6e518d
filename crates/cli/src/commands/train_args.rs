//! The arguments of `phalanx train`, and the configuration that they ask for.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use phalanx_launch::Hosts;
use phalanx_run::RunFolder;
use phalanx_trace::TraceSteps;
use phalanx_trainer::config::{ConfigError, Resolved};
use toml::Value;

use super::error::CliError;
use super::hosts;
use super::resolve::{check_utf8, configuration_of, set_data, set_parallel};
use crate::Program;

/// Train a model. Ctrl-C finishes the step and saves a checkpoint; a second one ends at once.
#[derive(Debug, Clone, Args)]
pub(super) struct TrainArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the first preset].
    pub(super) config: Option<String>,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(super) sets: Vec<String>,
    #[command(flatten)]
    pub(super) world: WorldArgs,
    /// The strategy by which ranks share the work.
    #[arg(long)]
    pub(super) strategy: Option<String>,
    /// The degrees of the mesh, as in [parallel]; -1 is the rest of the ranks.
    #[arg(long, value_name = "replicate=2,shard=2")]
    pub(super) parallel: Option<String>,
    /// Simulate a network: bandwidth and latency of the link of each rank, as in comm.link.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
    /// The images: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    pub(super) data: Option<String>,
    /// Begin with weights, as in model.weights: a file (safetensors, or of torch.save), a folder of Hugging Face's libraries, or a
    /// run.
    #[arg(long, value_name = "FILE|FOLDER")]
    pub(super) weights: Option<PathBuf>,
    /// Stop after this step, counted from the start of the run. The schedules do not change.
    #[arg(long, conflicts_with = "epochs")]
    steps: Option<u32>,
    /// Stop after this epoch, counted from the start of the run. The schedules do not change.
    #[arg(long)]
    epochs: Option<u32>,
    /// The run's folder [default: runs/NAME-TIME].
    #[arg(long, value_name = "DIR")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) start: StartArgs,
    /// Show a dashboard on a terminal; `?` shows its keys.
    #[arg(long)]
    pub(super) tui: bool,
    /// Write a trace of these steps to trace.json: from step A to step B, counted from 1, or all.
    #[arg(long, value_name = "A..B", num_args = 0..=1, default_missing_value = "all")]
    pub(super) trace: Option<TraceSteps>,
    /// Print the configuration and the plan without training.
    #[arg(long)]
    pub(super) dry_run: bool,
    /// The exit code of a run that was interrupted and has saved, for schedulers that are to start it again (75 is usual).
    #[arg(long, value_name = "CODE", default_value_t = 0)]
    pub(super) interrupted_code: u8,
}

/// The start of a training in a folder that holds a run.
#[derive(Debug, Clone, Args)]
pub(super) struct StartArgs {
    /// Resume the run in --out, or the newest of this name, from its newest complete checkpoint.
    #[arg(long)]
    pub(super) resume: bool,
    /// Start the run in --out again from step 1. Its record so far moves to its subfolder before-TIME.
    #[arg(long, conflicts_with = "resume", requires = "out")]
    pub(super) restart: bool,
    /// With --resume: begin with fresh state of this part, such as after a change of optim.kind.
    #[arg(long, value_name = "PART", requires = "resume")]
    pub(super) reset: Option<Reset>,
}

/// A part of a run's state that a resumption can begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Reset {
    /// The optimizer's state, such as momentum. Weights and averages continue.
    Optimizer,
}

/// The ranks of a training and their hosts.
#[derive(Debug, Clone, Args)]
pub(super) struct WorldArgs {
    /// The number of ranks.
    #[arg(long)]
    pub(super) ranks: Option<u32>,
    /// Start the ranks on several hosts by ssh: `a:4,b:4`, or a file with a host and its ranks in each line. The
    /// program and the run's folder must have the same path on all of them.
    #[arg(long, value_name = "HOST:RANKS,…|FILE", conflicts_with_all = ["tui", "servers"])]
    pub(super) hosts: Option<String>,
    #[command(flatten)]
    pub(super) node: NodeArgs,
    /// With --hosts: the ssh program with its options.
    #[arg(long, value_name = "COMMAND", requires = "hosts", default_value = hosts::SSH)]
    pub(super) ssh: String,
    /// The number of additional processes that only serve parameters, under ps-bsp, ps-ssp and ps-asp.
    #[arg(long)]
    servers: Option<u32>,
    /// Let ranks die, leave and join during training: at least MIN ranks remain, and at most MAX take part.
    #[arg(long, value_name = "MIN:MAX", value_parser = bounds)]
    elastic: Option<(u32, u32)>,
}

impl TrainArgs {
    /// The first of the options given that a run's configuration would be another by.
    pub(super) fn changes(&self) -> Option<&'static str> {
        let options = [
            ("the preset", self.config.is_some()),
            ("--set", !self.sets.is_empty()),
            ("--ranks", self.world.ranks.is_some()),
            ("--servers", self.world.servers.is_some()),
            ("--elastic", self.world.elastic.is_some()),
            ("--strategy", self.strategy.is_some()),
            ("--parallel", self.parallel.is_some()),
            ("--link", self.link.is_some()),
            ("--data", self.data.is_some()),
            ("--weights", self.weights.is_some()),
            ("--steps", self.steps.is_some()),
            ("--epochs", self.epochs.is_some()),
            ("--reset", self.start.reset.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// The port where ranks of several hosts meet unless told otherwise, as torchrun has it.
const PORT: u16 = 29_500;

/// One host of several.
#[derive(Debug, Clone, Args)]
pub(super) struct NodeArgs {
    /// Start the ranks of this host alone, one of N hosts that each run this same command, as pods do. All hosts must
    /// see the run's folder (--out).
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
    pub(super) rank: usize,
    pub(super) ranks: usize,
    pub(super) master: String,
    pub(super) port: u16,
}

impl NodeArgs {
    /// Returns true if any of the options is given.
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
    /// Returns the number of ranks on all hosts.
    pub(super) fn world_size(&self) -> usize {
        self.nodes.saturating_mul(self.ranks)
    }
}

/// Returns the configuration that the arguments ask for, checked.
pub(super) fn configuration(
    program: &Program,
    args: &TrainArgs,
    existing: Option<&RunFolder>,
) -> Result<Resolved, CliError> {
    let catalogue = program.catalogue();
    let mut resolved = match (&args.config, existing) {
        (None, Some(folder)) => {
            let mut resolved = configuration_of(program, folder)?;
            for set in &args.sets {
                resolved.set(&format!("--set {set}"), set)?;
            }
            resolved
        }
        (config, _) => catalogue.resolve(config.as_deref().or(catalogue.default_preset()), &args.sets)?,
    };
    set_ranks(&mut resolved, args)?;
    set_others(&mut resolved, args)?;
    if let Some(degrees) = &args.parallel {
        set_parallel(&mut resolved, degrees)?;
    }
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    if let Some(weights) = &args.weights {
        set_weights(&mut resolved, weights)?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// Applies `--weights`, with an absolute path, so that the run's config.toml means the same from everywhere.
fn set_weights(resolved: &mut Resolved, weights: &Path) -> Result<(), CliError> {
    check_utf8("--weights", weights)?;
    let path = std::path::absolute(weights).unwrap_or_else(|_| weights.to_owned());
    let (option, path) = (format!("--weights {}", weights.display()), path.display().to_string());
    Ok(resolved.set_value(&option, "model.weights", Value::String(path))?)
}

/// Applies the options that say how many ranks there are and where.
fn set_ranks(resolved: &mut Resolved, args: &TrainArgs) -> Result<(), CliError> {
    let servers = resolved.config.sync.servers;
    let integer = |number: usize| Value::Integer(number as i64);
    if let (Some(hosts), None) = (&args.world.hosts, args.world.ranks) {
        let ranks = Hosts::read(hosts).map_err(|error| CliError::Usage(error.to_string()))?.ranks();
        let ranks = ranks.saturating_sub(servers).max(1);
        resolved.set_value(&format!("--hosts {hosts}"), "train.ranks", integer(ranks))?;
    }
    if let Some(place) = args.world.node.place()? {
        let ranks = place.world_size().saturating_sub(servers).max(1);
        resolved.set_value(&format!("--nnodes {}", place.nodes), "train.ranks", integer(ranks))?;
    }
    if let Some(ranks) = args.world.ranks {
        resolved.set_value(&format!("--ranks {ranks}"), "train.ranks", Value::Integer(ranks.into()))?;
    }
    if let Some((least, most)) = args.world.elastic {
        let option = format!("--elastic {least}:{most}");
        resolved.set_value(&option, "elastic.min", Value::Integer(least.into()))?;
        resolved.set_value(&option, "elastic.max", Value::Integer(most.into()))?;
        if args.world.ranks.is_none() {
            resolved.set_value(&option, "train.ranks", Value::Integer(most.into()))?;
        }
    }
    Ok(())
}

/// Applies the options that stand for one key each, in their order.
fn set_others(resolved: &mut Resolved, args: &TrainArgs) -> Result<(), ConfigError> {
    let integer = |number: u32| Value::Integer(number.into());
    let text = |text: &String| Value::String(text.clone());
    let trace = args.trace.as_ref().map(ToString::to_string);
    let options = [
        ("--servers", args.world.servers.map(integer), "sync.servers", None),
        ("--strategy", args.strategy.as_ref().map(text), "train.strategy", None),
        ("--link", args.link.as_ref().map(text), "comm.link", None),
        ("--steps", args.steps.map(integer), "train.stop_step", Some("train.stop_epoch")),
        ("--epochs", args.epochs.map(integer), "train.stop_epoch", Some("train.stop_step")),
        ("--trace", trace.as_ref().map(text), "log.trace", None),
    ];
    for (option, value, key, cleared) in options {
        let Some(value) = value else { continue };
        let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let option = format!("{option} {shown}");
        resolved.set_value(&option, key, value)?;
        if let Some(cleared) = cleared {
            resolved.set_value(&option, cleared, Value::Integer(0))?;
        }
    }
    Ok(())
}

/// Reads `MIN:MAX`.
fn bounds(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let both = text.split_once(':').and_then(|(least, most)| Some((number(least)?, number(most)?)));
    both.filter(|(least, most)| least <= most).ok_or_else(|| "expected MIN:MAX, such as 2:4".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
