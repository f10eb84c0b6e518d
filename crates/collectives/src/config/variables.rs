//! A [`WorldConfig`] from the launcher's variables and those that users set.

use std::path::Path;
use std::time::Duration;

use super::{Timeouts, TransportOptions, WorldConfig};
use crate::algorithms::cost::CostModel;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use crate::security::{Credentials, Secret};
use phalanx_environment::{EnvironmentError, RankInfo, Variables, number};

/// The connect timeout of ranks in pods of Kubernetes, some of which have yet to pull their image.
const CONNECT_TIMEOUT_OF_PODS: Duration = Duration::from_secs(300);

impl WorldConfig {
    /// Reads the options of this process from the variables of its launcher: torchrun, OpenMPI's `mpirun`, MPICH's `mpiexec`, or
    /// SLURM's `srun`. `None` if no launcher set any.
    ///
    /// `RANK` and `WORLD_SIZE` (torchrun's) come first. Rank 0 is at `MASTER_ADDR` if that is set. Otherwise it is on loopback if
    /// all ranks are on one host, or else where the launcher puts it: SLURM's first node (`scontrol` is asked if its name does
    /// not resolve), the host of OpenMPI's `mpirun`, or the address that rank 0 publishes through MPICH's launcher.
    ///
    /// Rank 0 listens at `PHALANX_PORT` or `MASTER_PORT`, if one is set. Under torchrun `MASTER_PORT` does not count, as the
    /// agent has its store there. Without a port, rank 0 takes the first free one of sixteen between 20000 and 32287 that belong
    /// to the job's name ([`WorldConfig::job`]).
    ///
    /// Under MPICH the launcher is asked for that name, unless `MASTER_ADDR` and `MASTER_PORT` are both set. If ranks are on
    /// several hosts, this waits until all have asked. MPI itself must not start afterwards in the same process.
    ///
    /// # Errors
    /// [`CommError::Environment`] names the variable that is missing or malformed.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(&|name| std::env::var(name).ok())
    }

    /// Reads the options of a process from the variables that `get` returns, as [`WorldConfig::from_env`] does from the
    /// environment.
    ///
    /// # Errors
    /// [`CommError::Environment`] names the variable that is missing or malformed.
    pub fn from_variables(get: Variables<'_>) -> Result<Option<Self>> {
        let info = RankInfo::from_variables(get)?;
        info.map(|info| Self::of_rank(&info, get)).transpose()
    }

    /// Completes the launcher's record by the variables that users set.
    pub(super) fn of_rank(info: &RankInfo, get: Variables<'_>) -> Result<Self> {
        let meeting = info.meeting_point(get)?;
        let streams = streams(get)?;
        let algorithm = algorithm(get)?;
        let transport =
            TransportOptions { streams, shared_memory: shared_memory(get)?, ..TransportOptions::default() };
        let mut timeouts = Timeouts::default();
        if get("KUBERNETES_SERVICE_HOST").is_some() {
            timeouts.connect = CONNECT_TIMEOUT_OF_PODS;
        }
        Ok(Self {
            local_rank: info.local_rank,
            local_world_size: info.local_world_size.unwrap_or(1),
            job: info.job.clone(),
            host: get("PHALANX_HOST").map(|name| name.trim().to_owned()),
            transport,
            credentials: Credentials { secret: secret(get)?, ..Credentials::default() },
            algorithm,
            costs: costs(get)?,
            flight_recorder: get("PHALANX_FLIGHT_RECORDER").map(Into::into),
            timeouts,
            rank: info.rank,
            world_size: info.world_size,
            meeting,
        })
    }
}

/// The error of a variable of this crate's own.
fn invalid(variable: &'static str, problem: impl Into<String>) -> CommError {
    EnvironmentError::new(variable, problem).into()
}

fn streams(get: Variables<'_>) -> Result<usize> {
    match number(get, "PHALANX_STREAMS")? {
        Some(count @ 1..=64) => Ok(count as usize),
        Some(count) => Err(invalid("PHALANX_STREAMS", format!("{count} is not in the range 1 to 64"))),
        None => Ok(1),
    }
}

fn algorithm(get: Variables<'_>) -> Result<Algorithm> {
    let Some(text) = get("PHALANX_ALGORITHM") else { return Ok(Algorithm::Auto) };
    text.trim().parse().map_err(|error: CommError| invalid("PHALANX_ALGORITHM", error.to_string()))
}

fn shared_memory(get: Variables<'_>) -> Result<bool> {
    match get("PHALANX_SHARED_MEMORY").as_deref().map(str::trim) {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(invalid("PHALANX_SHARED_MEMORY", format!("expected 0 or 1, found `{other}`"))),
    }
}

/// Reads the costs of links from the file that `PHALANX_COSTS` names.
fn costs(get: Variables<'_>) -> Result<Option<CostModel>> {
    const NAME: &str = "PHALANX_COSTS";
    let Some(path) = get(NAME) else { return Ok(None) };
    let text = std::fs::read(&path).map_err(|error| invalid(NAME, format!("cannot read {path}: {error}")))?;
    let costs = serde_json::from_slice(&text);
    costs.map(Some).map_err(|error| invalid(NAME, format!("{path} holds no costs of links: {error}")))
}

/// Reads the secret from the file that `PHALANX_SECRET_FILE` names. Other processes of the user can read the environment itself,
/// child processes inherit it, and it ends up in listings.
fn secret(get: Variables<'_>) -> Result<Option<Secret>> {
    const NAME: &str = "PHALANX_SECRET_FILE";
    if get("PHALANX_SECRET").is_some() {
        let problem = format!(
            "other users can see a secret in the environment; write it to a file of mode 600 and name that in {NAME}"
        );
        return Err(invalid("PHALANX_SECRET", problem));
    }
    let read = get(NAME).map(|path| Secret::from_file(Path::new(&path)));
    read.transpose().map_err(|error| invalid(NAME, error.to_string()))
}
