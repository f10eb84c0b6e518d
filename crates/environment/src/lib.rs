//! The place of this process in its job, as the launcher describes it.
//!
//! Reads the variables of torchrun, SLURM's `srun`, OpenMPI's `mpirun` and MPICH's `mpiexec`. All names of launchers' variables
//! stand in this crate. It opens no connection between ranks: programs that start or supervise ranks can use it alone.
//!
//! - [`Launcher`]: the program that started this process.
//! - [`RankInfo`]: rank, world size, local rank, the job's name, and the host of rank 0.
//! - [`MeetingPoint`]: where rank 0 listens and the interface that this rank uses.
//! - [`TorchrunAgent`], [`SlurmJob`]: facts about the job apart from its ranks.
//! - [`Queries`]: what variables do not contain, and the launcher is asked for.
//!
//! # Example
//!
//! ```
//! use phalanx_environment::RankInfo;
//!
//! let variables = [("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1"), ("MASTER_ADDR", "127.0.0.1")];
//! let get = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
//! let info = RankInfo::from_variables(&get)?.expect("a launcher");
//! assert_eq!((info.rank, info.world_size), (1, 2));
//! # Ok::<(), phalanx_environment::EnvironmentError>(())
//! ```
#![deny(unsafe_code)]

mod error;

mod variables;

mod launcher;
mod rank_info;

mod interface;
mod scontrol;

mod pmi;

mod meeting_point;
mod mpich;
mod open_mpi;
mod slurm;
mod torchrun;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;

pub use error::{EnvironmentError, Result};
pub use interface::{outside_address, reachable_address, registration_address};
pub use launcher::Launcher;
pub use meeting_point::{MeetingPoint, PORTS, PORTS_OF_JOB};
pub use open_mpi::recovers;
pub use pmi::PmiJob;
pub use rank_info::{RankInfo, RankZeroHost};
pub use slurm::SlurmJob;
pub use torchrun::TorchrunAgent;
pub use variables::{Variables, number};

/// Answers that variables do not contain. Another program or a test gives its own.
pub struct Queries<'a> {
    /// Asks the PMI server for the job, and for the addresses of rank 0 if the second argument is true. All ranks wait then.
    pub pmi: &'a dyn Fn(u64, bool) -> Result<PmiJob>,
    /// Returns a name or address that resolves to a SLURM node.
    pub node_address: &'a dyn Fn(&str) -> String,
}

impl std::fmt::Debug for Queries<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queries").finish_non_exhaustive()
    }
}

impl RankInfo {
    /// Reads the place of this process from its environment. `None` if no launcher started it.
    ///
    /// Under MPICH this may ask the launcher's PMI server once; see `WorldConfig::from_env` of `phalanx-collectives`.
    ///
    /// # Errors
    /// [`EnvironmentError`](crate::EnvironmentError) names the variable that is missing or malformed.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads the place of a process from the variables that `get` returns.
    ///
    /// # Errors
    /// [`EnvironmentError`](crate::EnvironmentError) names the variable that is missing or malformed.
    pub fn from_variables(get: Variables<'_>) -> Result<Option<Self>> {
        let pmi = |rank, exchange| pmi::ask(get("PMI_FD").as_deref(), rank, exchange);
        Self::read(get, &Queries { pmi: &pmi, node_address: &scontrol::node_address })
    }

    /// As [`RankInfo::from_variables`], with other answers of the launcher, as for a recorded job.
    ///
    /// # Errors
    /// [`EnvironmentError`](crate::EnvironmentError) names the variable that is missing or malformed.
    pub fn read(get: Variables<'_>, queries: &Queries<'_>) -> Result<Option<Self>> {
        let Some(launcher) = Launcher::of(get) else { return Ok(None) };
        let info = match launcher {
            Launcher::Torchrun | Launcher::Variables => torchrun::rank_info(get)?,
            Launcher::OpenMpi => open_mpi::rank_info(get, queries.node_address)?,
            Launcher::Mpich => mpich::rank_info(get, queries.pmi)?,
            Launcher::Slurm => slurm::rank_info(get, queries.node_address)?,
        };
        if info.rank >= info.world_size {
            let problem = format!("rank {} does not exist in a world of {}", info.rank, info.world_size);
            return Err(EnvironmentError::new("RANK", problem));
        }
        Ok(Some(info))
    }
}

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
