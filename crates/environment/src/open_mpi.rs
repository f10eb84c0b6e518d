//! Variables of OpenMPI 4 and 5.

use std::net::IpAddr;

use super::interface;
use super::rank_info::{RankInfo, RankNumbers, RankZeroHost};
use super::slurm;
use super::variables::{Variables, is_on, port};
use crate::error::{EnvironmentError, Result};

/// Reads the rank that `mpirun`'s variables describe. Version 4 gives the addresses of `mpirun`'s host, version 5 its name as
/// part of the job's. Rank 0 is on that host unless `mpirun` was told otherwise.
pub(super) fn rank_info(get: Variables<'_>, node_address: &dyn Fn(&str) -> String) -> Result<RankInfo> {
    const NAMES: [&str; 3] = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
    let numbers = RankNumbers::read(get, NAMES, Some("OMPI_COMM_WORLD_LOCAL_SIZE"))?;
    let name = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
    let rank_0 = match RankZeroHost::given_or_local(get, &numbers) {
        Some(rank_0) => rank_0,
        None => launcher_host(get, numbers.rank, name.as_deref(), node_address)?,
    };
    let job = name.as_deref().map(|name| format!("mpirun {name}")).unwrap_or_default();
    Ok(numbers.with(job, port(get, "MASTER_PORT")?, rank_0))
}

/// Returns the host of `mpirun`, where rank 0 is by default.
fn launcher_host(
    get: Variables<'_>,
    rank: u64,
    name: Option<&str>,
    node_address: &dyn Fn(&str) -> String,
) -> Result<RankZeroHost> {
    const ADVICE: &str = "give the host of rank 0 to all ranks: `mpirun -x MASTER_ADDR=HOST`";
    let problem =
        |what: &str| EnvironmentError::new("MASTER_ADDR", format!("is not set, and {what}; {ADVICE}"));
    let unknown = || problem("mpirun does not tell where rank 0 is");
    let elsewhere = || problem("rank 0 is not on the host of mpirun");
    // `mpirun` starts its helpers on the other nodes by `srun`, whose step lacks the first node.
    if let Some(node) = slurm::first_node(get, &["SLURM_JOB_NODELIST", "SLURM_NODELIST"]) {
        return Ok(RankZeroHost::at(node_address(&node)));
    }
    if let Some(uri) = get("OMPI_MCA_orte_hnp_uri") {
        if rank == 0 && get("OMPI_MCA_orte_local_daemon_uri").is_some_and(|own| own != uri) {
            return Err(elsewhere());
        }
        let nearest = interface::nearest(&addresses_of_uri(&uri)).ok_or_else(unknown)?;
        return Ok(RankZeroHost::by_any_address(nearest.to_string()));
    }
    let host = name.and_then(host_of_namespace).ok_or_else(unknown)?;
    if rank == 0 && get("PMIX_HOSTNAME").is_some_and(|own| own != host) {
        return Err(elsewhere());
    }
    Ok(RankZeroHost::by_any_address(host.to_owned()))
}

/// True if `mpirun` keeps the other ranks of a job when one dies (`--enable-recovery`). Version 4 passes the option on to ranks.
pub fn recovers(get: Variables<'_>) -> bool {
    is_on(get, "OMPI_MCA_orte_enable_recovery")
}

/// Parses the addresses in `769130496.0;tcp://192.0.2.2,10.0.0.2:43579;tcp6://[fd00::2]:55017`.
fn addresses_of_uri(uri: &str) -> Vec<IpAddr> {
    let parts = uri.split(';').filter_map(|part| part.split_once("://"));
    let hosts = parts.filter_map(|(_, place)| Some(place.rsplit_once(':')?.0));
    hosts
        .flat_map(|hosts| hosts.split(','))
        .filter_map(|host| host.trim_matches(['[', ']']).parse().ok())
        .collect()
}

/// Returns the host in `prterun-HOST-PID@1`.
fn host_of_namespace(namespace: &str) -> Option<&str> {
    let (host, _) = namespace.split_once('@')?.0.strip_prefix("prterun-")?.rsplit_once('-')?;
    Some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_mpirun() {
        let uri = "769130496.0;tcp://192.0.2.2,10.0.0.2:43579;tcp6://[fd00::2]:55017";
        let addresses: Vec<String> = addresses_of_uri(uri).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.2", "10.0.0.2", "fd00::2"]);
        assert_eq!(host_of_namespace("prterun-gpu-03-23139@1"), Some("gpu-03"));
        assert_eq!(host_of_namespace("769130497"), None);
    }
}
