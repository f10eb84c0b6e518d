//! Launchers' environment variables: torchrun's, SLURM's, OpenMPI's.

use std::net::{IpAddr, Ipv4Addr};

use super::config::WorldConfig;
use crate::error::{CommError, Result};

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Ranks 0.. of a world over ports from this one, if a launcher gives no port.
const FIRST_PORT: u64 = 29_500;

fn wrong(variable: &'static str, problem: impl Into<String>) -> CommError {
    CommError::Environment { variable, problem: problem.into() }
}

fn number(get: Lookup<'_>, variable: &'static str) -> Result<Option<u64>> {
    get(variable)
        .map(|text| {
            let parsed = text.trim().parse();
            parsed.map_err(|_| wrong(variable, format!("expected a whole number, found `{text}`")))
        })
        .transpose()
}

fn required(get: Lookup<'_>, variable: &'static str, because: &'static str) -> Result<u64> {
    number(get, variable)?.ok_or_else(|| wrong(variable, format!("is not set, though {because} is")))
}

/// Reads the place of this process from variables that `get` looks up.
pub(super) fn read(get: Lookup<'_>) -> Result<Option<WorldConfig>> {
    let (rank, world_size, local_rank, master) = if get("RANK").is_some() || get("WORLD_SIZE").is_some() {
        let because = if get("RANK").is_some() { "RANK" } else { "WORLD_SIZE" };
        let (rank, world_size) = (required(get, "RANK", because)?, required(get, "WORLD_SIZE", because)?);
        (rank, world_size, number(get, "LOCAL_RANK")?.unwrap_or(rank), None)
    } else if get("OMPI_COMM_WORLD_RANK").is_some() {
        let because = "OMPI_COMM_WORLD_RANK";
        let rank = required(get, "OMPI_COMM_WORLD_RANK", because)?;
        let world_size = required(get, "OMPI_COMM_WORLD_SIZE", because)?;
        (rank, world_size, number(get, "OMPI_COMM_WORLD_LOCAL_RANK")?.unwrap_or(rank), None)
    } else if get("SLURM_PROCID").is_some() {
        let because = "SLURM_PROCID";
        let rank = required(get, "SLURM_PROCID", because)?;
        let world_size = required(get, "SLURM_NTASKS", because)?;
        let first = get("SLURM_JOB_NODELIST").or_else(|| get("SLURM_NODELIST")).map(|list| first_host(&list));
        (rank, world_size, number(get, "SLURM_LOCALID")?.unwrap_or(rank), first)
    } else {
        return Ok(None);
    };
    if rank >= world_size {
        return Err(wrong("RANK", format!("rank {rank} does not exist in a world of {world_size}")));
    }
    let master_addr = match get("MASTER_ADDR").or(master) {
        Some(address) => address,
        None if world_size == 1 => "127.0.0.1".into(),
        None => return Err(wrong("MASTER_ADDR", "is not set; it is the host where rank 0 listens")),
    };
    // Jobs of one cluster that give no port get different ones by their number.
    let by_job = number(get, "SLURM_JOB_ID").ok().flatten().map_or(FIRST_PORT, |job| FIRST_PORT + job % 1000);
    let port = number(get, "MASTER_PORT")?.unwrap_or(by_job);
    let master_port = u16::try_from(port)
        .map_err(|_| wrong("MASTER_PORT", format!("{port} is not a port; ports end at 65535")))?;
    let here = ["127.0.0.1", "localhost"].contains(&master_addr.as_str());
    let bind_addr = match get("PHALANX_BIND_ADDR") {
        Some(text) => text
            .trim()
            .parse()
            .map_err(|_| wrong("PHALANX_BIND_ADDR", format!("expected an IP address, found `{text}`")))?,
        None if here => IpAddr::V4(Ipv4Addr::LOCALHOST),
        None if master_addr == "::1" => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
        // A world over several hosts can only meet on an interface that they reach.
        None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    let local = WorldConfig::local(rank as usize, world_size as usize, master_port);
    Ok(Some(WorldConfig { local_rank: local_rank as usize, master_addr, bind_addr, ..local }))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)]) -> Result<Option<WorldConfig>> {
        read(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn every_launcher_is_recognised() {
        let torchrun = [
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "1234"),
        ];
        let slurm = [
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_ID", "7001"),
            ("SLURM_JOB_NODELIST", "gpu[03-07,9],login1"),
        ];
        let openmpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "99"),
        ];
        for (variables, address, port) in
            [(&torchrun, "127.0.0.1", 1234), (&slurm, "gpu03", 29_501), (&openmpi, "node1", 99)]
        {
            let config = with(variables).expect("complete").expect("a launcher");
            assert_eq!((config.rank, config.world_size, config.local_rank), (3, 4, 1));
            assert_eq!((config.master_addr.as_str(), config.master_port), (address, port));
            assert_eq!(config.bind_addr.is_loopback(), address == "127.0.0.1", "{address}");
        }
        assert_eq!(with(&[("HOME", "/nowhere")]), Ok(None));
        assert_eq!(
            with(&[("RANK", "0"), ("WORLD_SIZE", "1")]).expect("complete").map(|c| c.world_size),
            Some(1)
        );
    }

    #[test]
    fn half_an_environment_names_the_variable() {
        let cases: [(&[(&str, &str)], &str); 8] = [
            (&[("RANK", "1")], "WORLD_SIZE"),
            (&[("WORLD_SIZE", "2")], "RANK"),
            (&[("RANK", "one"), ("WORLD_SIZE", "2")], "RANK"),
            (&[("RANK", "2"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")], "RANK"),
            (&[("RANK", "1"), ("WORLD_SIZE", "2")], "MASTER_ADDR"),
            (
                &[("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "70000")],
                "MASTER_PORT",
            ),
            (&[("SLURM_PROCID", "1")], "SLURM_NTASKS"),
            (&[("OMPI_COMM_WORLD_RANK", "1")], "OMPI_COMM_WORLD_SIZE"),
        ];
        for (variables, expected) in cases {
            match with(variables) {
                Err(CommError::Environment { variable, .. }) => {
                    assert_eq!(variable, expected, "{variables:?}");
                }
                other => panic!("{variables:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn first_hosts() {
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
    }
}
