//! The arguments of `phalanx train`, and the configuration that they request.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use phalanx_config::Resolved;
use phalanx_launch::Hosts;
use phalanx_run::RunFolder;
use phalanx_trace::TraceSteps;
use toml::Value;

use super::config_args::{ConfigArgs, ElasticArgs};
use super::error::CliError;
use super::hosts;
use super::node_args::NodeArgs;
use crate::Program;

/// Train a model. Ctrl-C finishes the step and saves a checkpoint; a second one ends at once.
#[derive(Debug, Clone, Args)]
pub(super) struct TrainArgs {
    #[command(flatten)]
    pub(super) choice: ConfigArgs,
    /// The run's folder [default: runs/NAME-TIME].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(super) out: Option<PathBuf>,
    #[command(flatten)]
    pub(super) start: StartArgs,
    #[command(flatten)]
    pub(super) world: WorldArgs,
    #[command(flatten)]
    pub(super) show: ShowArgs,
    /// Print the plan without training; with --verbose, also all keys.
    #[arg(long, help_heading = "Output")]
    pub(super) dry_run: bool,
    /// The exit code of a run that was interrupted and has saved, for schedulers that start it again (75 is usual).
    #[arg(long, value_name = "CODE", default_value_t = 0, help_heading = "Resumption")]
    pub(super) interrupted_code: u8,
}

/// The output of a training.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Output")]
pub(super) struct ShowArgs {
    /// Show a dashboard on a terminal; `?` shows its keys.
    #[arg(long)]
    pub(super) tui: bool,
    /// Print events as JSON, one a line: started, step, evaluated, saved, sampled, finished.
    #[arg(long, conflicts_with = "tui")]
    pub(super) json: bool,
    /// Write a trace of these steps to trace.json: from step A to step B, counted from 1, or all.
    #[arg(long, value_name = "A..B", num_args = 0..=1, default_missing_value = "all")]
    pub(super) trace: Option<TraceSteps>,
}

/// The start of a training in a folder that holds a run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Resumption")]
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
#[command(next_help_heading = "Ranks and hosts")]
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
    #[command(flatten)]
    pub(super) size: ElasticArgs,
}

/// Returns the configuration that the arguments request, checked.
pub(super) fn configuration(
    program: &Program,
    args: &TrainArgs,
    existing: Option<&RunFolder>,
) -> Result<Resolved, CliError> {
    let mut resolved = args.choice.base(program, existing)?;
    set_ranks(&mut resolved, &args.world)?;
    args.world.size.apply(&mut resolved, args.world.ranks.is_none())?;
    args.choice.apply(&mut resolved)?;
    if let Some(trace) = &args.show.trace {
        resolved.set_value(&format!("--trace {trace}"), "log.trace", Value::String(trace.to_string()))?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// Applies the options that give the number of ranks.
fn set_ranks(resolved: &mut Resolved, world: &WorldArgs) -> Result<(), CliError> {
    let servers = resolved.config.sync.servers;
    let integer = |number: usize| Value::Integer(number as i64);
    if let (Some(hosts), None) = (&world.hosts, world.ranks) {
        let ranks = Hosts::read(hosts).map_err(|error| CliError::Usage(error.to_string()))?.ranks();
        let ranks = ranks.saturating_sub(servers).max(1);
        resolved.set_value(&format!("--hosts {hosts}"), "train.ranks", integer(ranks))?;
    }
    if let Some(place) = world.node.place()? {
        let ranks = place.world_size().saturating_sub(servers).max(1);
        resolved.set_value(&format!("--nnodes {}", place.nodes), "train.ranks", integer(ranks))?;
    }
    if let Some(ranks) = world.ranks {
        resolved.set_value(&format!("--ranks {ranks}"), "train.ranks", Value::Integer(ranks.into()))?;
    }
    Ok(())
}
