//! Jobs of a scheduler: what a training asks SLURM or Kubernetes for, the script that it submits, and what became of it.
//!
//! A job trains a run whose folder exists: its configuration is resolved, and checked, where it is submitted, so that nothing
//! that is edited while the job waits changes it, and the script is the same for a first start and for every next one: it
//! goes on with what is there. A rank that is told to stop (`TERM`, `USR1`, `USR2`, or because the job's time is up soon) says
//! so to the others, all save the same step, and the job, if it may, asks to be queued again.
//!
//! ```
//! use phalanx_launch::cluster::Job;
//!
//! let job = Job { name: "cvae".into(), nodes: 2, ranks_per_node: 4, time: Some("2:00:00".into()), ..Job::default() };
//! let script = job.script("/opt/phalanx".as_ref(), "/scratch/runs/cvae".as_ref())?;
//! assert!(script.contains("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"));
//! assert!(script.contains("srun --kill-on-bad-exit=1 "));
//! # Ok::<(), phalanx_launch::cluster::ClusterError>(())
//! ```

mod error;

mod job;
mod kubernetes;
mod limit;
mod queue;
mod record;
mod survival;
mod text;
mod torchrun;

pub use error::ClusterError;
pub use job::{Job, TASK, Work, tasks_of_array};
pub use kubernetes::{INTERRUPTED, Pods, pod_name};
pub use limit::{left, seconds_of, time_left};
pub use queue::{QueueEntry, Slurm, parse as queued};
pub use record::JobRecord;
pub use survival::{RankSurvival, survival};
pub use torchrun::Torchrun;
