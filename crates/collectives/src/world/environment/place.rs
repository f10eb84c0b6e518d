//! The place that each [`Launcher`] tells a process.
//!
//! A launcher says who a process is. Where the ranks meet, only torchrun says, and even its port is not for them: its agent
//! has its own store there. The others give the job a name. So the place of the meeting follows from what they do give:
//! the host of rank 0 (loopback, where all ranks are on one host), and, where no port is given, a few ports that belong to
//! the job's name ([`super::ports_of`]).

use std::net::IpAddr;

use super::{Ask, AskPmi, Launcher, Lookup, number, required, wrong};
use crate::error::Result;
use crate::world::interface;
use crate::world::pmi;

/// Where a world meets, if neither a launcher nor the user gives a port and the job has no name.
pub(super) const DEFAULT_PORT: u16 = 29_500;

/// A process's place, as its launcher tells it.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) rank: u64,
    pub(super) world_size: u64,
    pub(super) local_rank: u64,
    /// Ranks on this host, if the launcher says.
    pub(super) local_size: Option<u64>,
    /// The job's name: all of its ranks have it, and no other job does. Empty if the launcher gives none.
    pub(super) job: String,
    /// The port where rank 0 listens, if one is given.
    pub(super) port: Option<u16>,
    /// The host of rank 0.
    pub(super) master: Master,
}

/// The host of rank 0.
#[derive(Debug)]
pub(super) struct Master {
    pub(super) address: String,
    /// Whether ranks may know rank 0 by different addresses, so that it listens at all that it has.
    pub(super) by_any_address: bool,
    /// Whether all ranks are on one host and nobody has said where they meet, so that any interface of it will do.
    pub(super) anywhere_here: bool,
}

impl Master {
    /// At this name or address, and no other.
    fn at(address: String) -> Self {
        Self { address, by_any_address: false, anywhere_here: false }
    }

    /// At this name or address, while others may know it by another.
    fn by_any_address(address: String) -> Self {
        Self { by_any_address: true, ..Self::at(address) }
    }
}

/// The place of this process, if a launcher has started it.
pub(super) fn place(get: Lookup<'_>, ask: &Ask<'_>) -> Result<Option<Place>> {
    let Some(launcher) = Launcher::of(get) else { return Ok(None) };
    let place = match launcher {
        Launcher::Torchrun | Launcher::Variables => torchrun(get)?,
        Launcher::OpenMpi => open_mpi(get, ask.node)?,
        Launcher::Mpich => hydra(get, ask.pmi)?,
        Launcher::Slurm => slurm(get, ask.node)?,
    };
    if place.rank >= place.world_size {
        let problem = format!("rank {} does not exist in a world of {}", place.rank, place.world_size);
        return Err(wrong("RANK", problem));
    }
    Ok(Some(place))
}

/// Rank, size, rank on this host, ranks on this host, by the names of their variables; the last two are optional.
fn numbers(
    get: Lookup<'_>,
    [rank, size, local_rank, local_size]: [&'static str; 4],
) -> Result<(u64, u64, u64, Option<u64>)> {
    let because = if get(rank).is_some() { rank } else { size };
    let (own, all) = (required(get, rank, because)?, required(get, size, because)?);
    Ok((own, all, number(get, local_rank)?.unwrap_or(own), number(get, local_size)?))
}

/// The user's word on where rank 0 is, or loopback where no rank is elsewhere.
fn told_or_here(get: Lookup<'_>, world_size: u64, local_size: Option<u64>) -> Option<Master> {
    if let Some(address) = get("MASTER_ADDR") {
        return Some(Master::at(address));
    }
    let here = world_size == 1 || local_size == Some(world_size);
    here.then(|| Master { anywhere_here: true, ..Master::at("127.0.0.1".to_owned()) })
}

fn port(get: Lookup<'_>, variable: &'static str) -> Result<Option<u16>> {
    let Some(port) = number(get, variable)? else { return Ok(None) };
    let port = u16::try_from(port).ok().filter(|port| *port > 0);
    port.map(Some).ok_or_else(|| wrong(variable, "is not a port; ports are 1 to 65535"))
}

/// The port that the user has chosen for the ranks, whatever the launcher says.
pub(super) fn chosen_port(get: Lookup<'_>) -> Result<Option<u16>> {
    port(get, "PHALANX_PORT")
}

/// torchrun, and whoever else sets its variables: [`crate::WorldConfig::local`] by hand, a cluster's own scripts, and
/// supervisors of this project.
fn torchrun(get: Lookup<'_>) -> Result<Place> {
    let (rank, world_size, local_rank, local_size) =
        numbers(get, ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"])?;
    let master = told_or_here(get, world_size, local_size)
        .ok_or_else(|| wrong("MASTER_ADDR", "is not set; it is the host where rank 0 listens"))?;
    let given = port(get, "MASTER_PORT")?;
    // The agent keeps its own store at that port for as long as the ranks run. The number of restarts is no part of the name:
    // each agent counts its own.
    let agent_is_there = get("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|text| text.trim() == "True");
    let (job, port) = match (agent_is_there, given) {
        // Supervisors of this project on several hosts cannot know a free port of rank 0's.
        _ if get("PHALANX_JOB").is_some() => (get("PHALANX_JOB").unwrap_or_default(), None),
        (true, Some(store)) => {
            let run = get("TORCHELASTIC_RUN_ID").unwrap_or_default();
            (format!("torchrun {}:{store} {run}", master.address), None)
        }
        _ => (String::new(), Some(given.unwrap_or(DEFAULT_PORT))),
    };
    Ok(Place { rank, world_size, local_rank, local_size, job, port, master })
}

/// OpenMPI 4 and 5. Version 4 tells the addresses of `mpirun`'s host, version 5 its name, inside of the job's; rank 0 is
/// there, unless `mpirun` was told otherwise.
fn open_mpi(get: Lookup<'_>, reach: &dyn Fn(&str) -> String) -> Result<Place> {
    let (rank, world_size, local_rank, local_size) = numbers(
        get,
        [
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
        ],
    )?;
    let name = get("PMIX_NAMESPACE").or_else(|| get("OMPI_MCA_ess_base_jobid"));
    let advice = "it is the host of rank 0, which can be given to all ranks by `mpirun -x MASTER_ADDR=HOST`";
    let unknown =
        || wrong("MASTER_ADDR", format!("is not set, and mpirun does not say where rank 0 is; {advice}"));
    let elsewhere =
        || wrong("MASTER_ADDR", format!("is not set, and rank 0 is not on the host of mpirun; {advice}"));
    let by_launcher = || {
        // `mpirun` starts its helpers on the other nodes by `srun`, whose step is without the first.
        if let Some(node) = slurm_host(get, &["SLURM_JOB_NODELIST", "SLURM_NODELIST"]) {
            return Ok(Master::at(reach(&node)));
        }
        if let Some(uri) = get("OMPI_MCA_orte_hnp_uri") {
            if rank == 0 && get("OMPI_MCA_orte_local_daemon_uri").is_some_and(|own| own != uri) {
                return Err(elsewhere());
            }
            let nearest = interface::nearest(&addresses_of_uri(&uri)).ok_or_else(unknown)?;
            return Ok(Master::by_any_address(nearest.to_string()));
        }
        let host = name.as_deref().and_then(host_of_namespace).ok_or_else(unknown)?;
        if rank == 0 && get("PMIX_HOSTNAME").is_some_and(|own| own != host) {
            return Err(elsewhere());
        }
        Ok(Master::by_any_address(host.to_owned()))
    };
    let master = told_or_here(get, world_size, local_size).map_or_else(by_launcher, Ok)?;
    let job = name.as_deref().map(|name| format!("mpirun {name}")).unwrap_or_default();
    let port = port(get, "MASTER_PORT")?;
    Ok(Place { rank, world_size, local_rank, local_size, job, port, master })
}

/// The addresses in `769130496.0;tcp://192.0.2.2,10.0.0.2:43579;tcp6://[fd00::2]:55017`.
fn addresses_of_uri(uri: &str) -> Vec<IpAddr> {
    let parts = uri.split(';').filter_map(|part| part.split_once("://"));
    let hosts = parts.filter_map(|(_, place)| Some(place.rsplit_once(':')?.0));
    hosts
        .flat_map(|hosts| hosts.split(','))
        .filter_map(|host| host.trim_matches(['[', ']']).parse().ok())
        .collect()
}

/// The host in `prterun-HOST-PID@1`.
fn host_of_namespace(namespace: &str) -> Option<&str> {
    let (host, _) = namespace.split_once('@')?.0.strip_prefix("prterun-")?.rsplit_once('-')?;
    Some(host)
}

/// MPICH and its kin (Intel MPI, MVAPICH). Their launcher tells neither the job's name nor a host by variables; it answers
/// questions for both ([`pmi`]).
fn hydra(get: Lookup<'_>, ask_pmi: AskPmi<'_>) -> Result<Place> {
    let (rank, world_size, local_rank, local_size) =
        numbers(get, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"])?;
    let port = port(get, "MASTER_PORT")?;
    let master = told_or_here(get, world_size, local_size);
    let (job, master) = match (master, port) {
        // All is told, and the launcher need not be asked.
        (Some(master), Some(_)) => (String::new(), master),
        (Some(master), None) => (ask_pmi(rank, false)?.job, master),
        (None, _) => {
            let pmi::Told { job, addresses } = ask_pmi(rank, true)?;
            let advice = "is not set, and rank 0 has not said which addresses it has; it is the host of rank 0, which can \
                          be given to all ranks by `mpiexec -genv MASTER_ADDR HOST`";
            let nearest = interface::nearest(&addresses).ok_or_else(|| wrong("MASTER_ADDR", advice))?;
            (job, Master::by_any_address(nearest.to_string()))
        }
    };
    Ok(Place { rank, world_size, local_rank, local_size, job, port, master })
}

/// A step of SLURM.
fn slurm(get: Lookup<'_>, reach: &dyn Fn(&str) -> String) -> Result<Place> {
    let (rank, world_size, local_rank, _) =
        numbers(get, ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"])?;
    let node = number(get, "SLURM_NODEID")?.unwrap_or(0);
    let per_node = get("SLURM_STEP_TASKS_PER_NODE").or_else(|| get("SLURM_TASKS_PER_NODE"));
    let local_size =
        per_node
            .and_then(|list| tasks_of_node(&list, node))
            .or(number(get, "SLURM_NTASKS_PER_NODE").ok().flatten());
    let master = told_or_here(get, world_size, local_size)
        .or_else(|| slurm_host(get, &NODES_OF_STEP).map(|node| Master::at(reach(&node))))
        .ok_or_else(|| {
            wrong("MASTER_ADDR", "is not set, and SLURM lists no nodes; it is the host of rank 0")
        })?;
    let restart = get("SLURM_RESTART_COUNT").unwrap_or_default();
    let step = get("SLURM_STEP_ID").unwrap_or_default();
    let job = get("SLURM_JOB_ID").map(|job| format!("slurm {job}.{step} {restart}"));
    let (job, port) = (job.unwrap_or_default(), port(get, "MASTER_PORT")?);
    Ok(Place { rank, world_size, local_rank, local_size, job, port, master })
}

/// Where the nodes of a step are listed: those of the step, or else of its allocation.
const NODES_OF_STEP: [&str; 3] = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];

/// The first node of the first of these lists that there is: that of rank 0.
fn slurm_host(get: Lookup<'_>, lists: &[&str]) -> Option<String> {
    lists.iter().find_map(|list| get(list)).map(|list| first_host(&list))
}

/// The first host of SLURM's list: `gpu[03-07,9],login1` begins with `gpu03`.
fn first_host(list: &str) -> String {
    match (list.find('['), list.find(',')) {
        (Some(bracket), comma) if comma.is_none_or(|comma| bracket < comma) => {
            let inside = &list[bracket + 1..];
            let end = inside.find([',', '-', ']']).unwrap_or(inside.len());
            format!("{}{}", &list[..bracket], &inside[..end])
        }
        (_, Some(comma)) => list[..comma].to_owned(),
        (_, None) => list.to_owned(),
    }
}

/// The tasks of a node in SLURM's list: `2(x3),1` gives three nodes two tasks and the fourth one.
fn tasks_of_node(list: &str, node: u64) -> Option<u64> {
    let mut first = 0_u64;
    for part in list.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.trim_end_matches(')').parse().ok()?),
            None => (part, 1),
        };
        let end = first.saturating_add(nodes);
        if (first..end).contains(&node) {
            return tasks.trim().parse().ok();
        }
        first = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_slurm() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-3]", "n1"),
            ("n[07,9]", "n07"),
            ("a,b[1-2]", "a"),
            ("n[4]", "n4"),
        ] {
            assert_eq!(first_host(list), first, "{list}");
        }
        let of = |list: &str| (0..5).map(|node| tasks_of_node(list, node)).collect::<Vec<_>>();
        assert_eq!(of("3,1"), [Some(3), Some(1), None, None, None]);
        assert_eq!(of("2(x3),1"), [Some(2), Some(2), Some(2), Some(1), None]);
    }

    #[test]
    fn hosts_of_mpirun() {
        let uri = "769130496.0;tcp://192.0.2.2,10.0.0.2:43579;tcp6://[fd00::2]:55017";
        let addresses: Vec<String> = addresses_of_uri(uri).iter().map(ToString::to_string).collect();
        assert_eq!(addresses, ["192.0.2.2", "10.0.0.2", "fd00::2"]);
        assert_eq!(host_of_namespace("prterun-gpu-03-23139@1"), Some("gpu-03"));
        assert_eq!(host_of_namespace("769130497"), None);
    }
}
