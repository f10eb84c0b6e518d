//! The place of this process in its job, as the launcher describes it.
//!
//! Reads the variables of torchrun, SLURM's `srun`, OpenMPI's `mpirun` and MPICH's `mpiexec`. All names of launchers' variables
//! stand in this folder. It knows no [`crate::WorldConfig`]: programs that start or supervise ranks can use it alone.
//!
//! - [`Launcher`]: the program that started this process.
//! - [`RankInfo`]: rank, world size, local rank, the job's name, and the host of rank 0.
//! - [`MeetingPoint`]: where rank 0 listens and the interface that this rank uses.
//! - [`TorchrunAgent`], [`SlurmJob`]: facts about the job apart from its ranks.

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

pub use launcher::Launcher;
pub use meeting_point::MeetingPoint;
#[cfg(test)]
pub(crate) use meeting_point::{PORTS, PORTS_OF_JOB};
pub use open_mpi::recovers;
pub use rank_info::{RankInfo, RankZeroHost};
pub use slurm::SlurmJob;
pub use torchrun::TorchrunAgent;
pub use variables::Variables;

pub(crate) use interface::{outside_address, reachable_address, registration_address};
pub(crate) use pmi::PmiJob;
#[cfg(any(test, fuzzing))]
pub(crate) use pmi::parse_answers;
#[cfg(any(test, fuzzing))]
pub(crate) use scontrol::parse_node_address;
pub(crate) use variables::{invalid, number};

use crate::error::Result;

/// Answers that variables do not contain. Tests replace them.
pub(crate) struct Queries<'a> {
    /// Asks the PMI server for the job, and for the addresses of rank 0 if the second argument is true. All ranks wait then.
    pub(crate) pmi: &'a dyn Fn(u64, bool) -> Result<PmiJob>,
    /// Returns a name or address that resolves to a SLURM node.
    pub(crate) node_address: &'a dyn Fn(&str) -> String,
}

impl RankInfo {
    /// Reads the place of this process from its environment. `None` if no launcher started it.
    ///
    /// Under MPICH this may ask the launcher's PMI server once; see [`crate::WorldConfig::from_env`].
    ///
    /// # Errors
    /// [`crate::CommError::Environment`] names the variable that is missing or malformed.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads the place of a process from the variables that `get` returns.
    ///
    /// # Errors
    /// [`crate::CommError::Environment`] names the variable that is missing or malformed.
    pub fn from_variables(get: Variables<'_>) -> Result<Option<Self>> {
        let pmi = |rank, exchange| pmi::ask(get("PMI_FD").as_deref(), rank, exchange);
        Self::read(get, &Queries { pmi: &pmi, node_address: &scontrol::node_address })
    }

    /// As [`RankInfo::from_variables`], with replaceable queries.
    pub(crate) fn read(get: Variables<'_>, queries: &Queries<'_>) -> Result<Option<Self>> {
        let Some(launcher) = Launcher::of(get) else { return Ok(None) };
        let info = match launcher {
            Launcher::Torchrun | Launcher::Variables => torchrun::rank_info(get)?,
            Launcher::OpenMpi => open_mpi::rank_info(get, queries.node_address)?,
            Launcher::Mpich => mpich::rank_info(get, queries.pmi)?,
            Launcher::Slurm => slurm::rank_info(get, queries.node_address)?,
        };
        if info.rank >= info.world_size {
            let problem = format!("rank {} does not exist in a world of {}", info.rank, info.world_size);
            return Err(invalid("RANK", problem));
        }
        Ok(Some(info))
    }
}
