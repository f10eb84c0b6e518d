//! The options of a job: hosts, ranks, devices and time.

use clap::Args;

use crate::commands::error::CliError;
use phalanx_config::{Config, DeviceKind};
use phalanx_launch::cluster::{Job, Work, seconds_of};

/// The requests of a job to the cluster.
#[derive(Debug, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct JobArgs {
    /// The number of hosts.
    #[arg(long, default_value_t = 1)]
    pub(super) nodes: usize,
    /// Ranks on each host.
    #[arg(long, default_value_t = 1)]
    pub(super) ranks_per_node: usize,
    /// Cores of each rank [default: the cluster's].
    #[arg(long)]
    pub(super) cpus_per_rank: Option<usize>,
    /// GPUs of each host, one for each of its ranks.
    #[arg(long)]
    pub(super) gpus_per_node: Option<usize>,
    /// The time limit of the job: minutes, h:mm:ss or d-hh:mm:ss [default: the partition's].
    #[arg(long)]
    pub(super) time: Option<String>,
    /// The partition [default: the cluster's].
    #[arg(long)]
    pub(super) partition: Option<String>,
    /// The account that pays.
    #[arg(long)]
    pub(super) account: Option<String>,
    /// Queue the job again if it was interrupted: by its time limit, by a signal, or by the cluster.
    #[arg(long)]
    pub(super) requeue: bool,
    /// Tasks of an array, as in 0-3,7: a run for each, in which {task} in --set is its number; without it the task's number is
    /// the seed.
    #[arg(long)]
    pub(super) array: Option<String>,
    /// Seconds before the end of the job's time at which the run is told to save.
    #[arg(long, default_value_t = 120)]
    pub(super) warning: u64,
    /// Further options of sbatch, as in --sbatch=--constraint=a100; may be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    pub(super) sbatch: Vec<String>,
}

impl JobArgs {
    /// Returns the number of ranks on all hosts.
    pub(super) fn ranks(&self) -> usize {
        self.nodes.saturating_mul(self.ranks_per_node)
    }

    /// Returns the job that is requested from SLURM.
    pub(super) fn of(&self, work: Work, name: String) -> Job {
        Job {
            work,
            name,
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            cpus_per_rank: self.cpus_per_rank,
            gpus_per_node: self.gpus_per_node,
            time: self.time.clone(),
            partition: self.partition.clone(),
            account: self.account.clone(),
            requeue: self.requeue,
            array: self.array.clone(),
            warning: self.warning,
            options: self.sbatch.clone(),
        }
    }

    /// Refuses requests that no cluster can meet, before the job waits in a queue.
    pub(super) fn check(&self) -> Result<(), CliError> {
        for (option, number) in [
            ("--nodes", Some(self.nodes)),
            ("--ranks-per-node", Some(self.ranks_per_node)),
            ("--cpus-per-rank", self.cpus_per_rank),
            ("--gpus-per-node", self.gpus_per_node),
        ] {
            if number == Some(0) {
                return Err(CliError::Usage(format!("{option} 0: must be at least 1, or left out")));
            }
        }
        let seconds = self.time.as_deref().map(seconds_of).transpose()?;
        match (seconds, &self.time) {
            (Some(seconds), Some(time)) if seconds <= self.warning => Err(CliError::Usage(format!(
                "--time {time}: the run is told to save {} s before the end, so no time is left to train; take more time, or --warning S",
                self.warning
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses a number of GPUs that does not fit the ranks of a host and their device.
    pub(super) fn check_devices(&self, config: &Config) -> Result<(), CliError> {
        let ranks = self.ranks_per_node;
        let problem = match (self.gpus_per_node, config.train.device) {
            (Some(gpus), DeviceKind::Cpu) => {
                format!("--gpus-per-node {gpus}: train.device = cpu uses no GPU; leave one of them out")
            }
            (Some(gpus), _) if gpus != ranks => format!(
                "--gpus-per-node {gpus}: each of the {ranks} ranks of a host takes a GPU; take --gpus-per-node {ranks}"
            ),
            (None, DeviceKind::Cuda) => {
                format!("train.device = cuda: the job requests no GPU; add --gpus-per-node {ranks}")
            }
            _ => return Ok(()),
        };
        Err(CliError::Usage(problem))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        job: JobArgs,
    }

    fn job(options: &str) -> JobArgs {
        Line::parse_from(["x"].into_iter().chain(options.split_whitespace())).job
    }

    #[test]
    fn requests_that_cannot_be_met_are_refused() {
        for (options, problem) in [
            ("--nodes 0", "--nodes 0"),
            ("--cpus-per-rank 0", "--cpus-per-rank 0"),
            ("--time soon", "soon"),
            ("--time 2", "no time is left"),
            ("--time 0:30 --warning 10", ""),
            ("--time 2 --warning 30", ""),
            ("", ""),
        ] {
            let outcome = job(options).check().map_err(|error| error.to_string());
            match problem {
                "" => assert!(outcome.is_ok(), "{options}: {outcome:?}"),
                _ => assert!(
                    outcome.as_ref().is_err_and(|text| text.contains(problem)),
                    "{options}: {outcome:?}"
                ),
            }
        }
    }

    #[test]
    fn gpus_must_fit_ranks_and_device() {
        for (options, device, problem) in [
            ("--ranks-per-node 4 --gpus-per-node 2", DeviceKind::Auto, "--gpus-per-node 4"),
            ("--ranks-per-node 2 --gpus-per-node 2", DeviceKind::Auto, ""),
            ("--gpus-per-node 1", DeviceKind::Cpu, "uses no GPU"),
            ("--ranks-per-node 2", DeviceKind::Cuda, "--gpus-per-node 2"),
            ("--ranks-per-node 2", DeviceKind::Auto, ""),
        ] {
            let mut config = Config::default();
            config.train.device = device;
            let outcome = job(options).check_devices(&config).map_err(|error| error.to_string());
            match problem {
                "" => assert!(outcome.is_ok(), "{options}: {outcome:?}"),
                _ => assert!(
                    outcome.as_ref().is_err_and(|text| text.contains(problem)),
                    "{options}: {outcome:?}"
                ),
            }
        }
    }
}
