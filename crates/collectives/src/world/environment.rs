//! Launchers' environment variables: torchrun's, SLURM's, OpenMPI's.

use std::path::Path;

use super::config::WorldConfig;
use super::interface;
use super::secret::Secret;
use super::tls::Tls;
use crate::algorithms::cost::CostModel;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

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
    let bind_addr = match get("PHALANX_INTERFACE") {
        Some(text) => interface::named(text.trim(), &master_addr, master_port)
            .map_err(|problem| wrong("PHALANX_INTERFACE", problem))?,
        None => interface::towards(&master_addr, master_port),
    };
    let streams = match number(get, "PHALANX_STREAMS")? {
        Some(count @ 1..=64) => count as usize,
        Some(count) => return Err(wrong("PHALANX_STREAMS", format!("{count}; there can be 1 to 64"))),
        None => 1,
    };
    let algorithm = match get("PHALANX_ALGORITHM") {
        Some(text) => {
            text.trim().parse().map_err(|error: CommError| wrong("PHALANX_ALGORITHM", error.to_string()))?
        }
        None => Algorithm::Auto,
    };
    let shared_memory = match get("PHALANX_SHARED_MEMORY").as_deref().map(str::trim) {
        None | Some("1") => true,
        Some("0") => false,
        Some(other) => {
            return Err(wrong("PHALANX_SHARED_MEMORY", format!("expected 0 or 1, found `{other}`")));
        }
    };
    let local = WorldConfig::local(rank as usize, world_size as usize, master_port);
    Ok(Some(WorldConfig {
        local_rank: local_rank as usize,
        master_addr,
        bind_addr,
        shared_memory,
        host: get("PHALANX_HOST").map(|name| name.trim().to_owned()),
        streams,
        secret: secret(get)?,
        tls: tls(get)?,
        costs: costs(get)?,
        algorithm,
        flight_recorder: get("PHALANX_FLIGHT_RECORDER").map(Into::into),
        ..local
    }))
}

/// The costs in the file that the environment names.
fn costs(get: Lookup<'_>) -> Result<Option<CostModel>> {
    const NAME: &str = "PHALANX_COSTS";
    let Some(path) = get(NAME) else { return Ok(None) };
    let text = std::fs::read(&path).map_err(|error| wrong(NAME, format!("cannot read {path}: {error}")))?;
    let costs = serde_json::from_slice(&text);
    costs.map(Some).map_err(|error| wrong(NAME, format!("{path} holds no costs of links: {error}")))
}

/// The certificates that the environment names the files of: all three or none.
fn tls(get: Lookup<'_>) -> Result<Option<Tls>> {
    const NAMES: [&str; 3] = ["PHALANX_TLS_CERTIFICATE", "PHALANX_TLS_KEY", "PHALANX_TLS_AUTHORITY"];
    let found = NAMES.map(get);
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    match found {
        [Some(certificate), Some(key), Some(authority)] => {
            let (certificate, key, authority) = (certificate.into(), key.into(), authority.into());
            Ok(Some(Tls { certificate, key, authority }))
        }
        found => {
            let missing = NAMES.into_iter().zip(found).find(|(_, value)| value.is_none());
            let missing = missing.map_or(NAMES[0], |(name, _)| name);
            Err(wrong(missing, "is not set, though others of the three for TLS are"))
        }
    }
}

/// The secret that the environment holds or names the file of.
fn secret(get: Lookup<'_>) -> Result<Option<Secret>> {
    match (get("PHALANX_SECRET"), get("PHALANX_SECRET_FILE")) {
        (Some(_), Some(_)) => {
            Err(wrong("PHALANX_SECRET", "is set, and so is PHALANX_SECRET_FILE; one is enough"))
        }
        (Some(text), None) => Secret::new(text.trim().as_bytes())
            .map(Some)
            .map_err(|error| wrong("PHALANX_SECRET", error.to_string())),
        (None, Some(path)) => Secret::from_file(Path::new(&path))
            .map(Some)
            .map_err(|error| wrong("PHALANX_SECRET_FILE", error.to_string())),
        (None, None) => Ok(None),
    }
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
            assert_eq!((config.streams, config.shared_memory, &config.secret), (1, true, &None));
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
    fn what_phalanx_itself_reads() {
        let base =
            [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1234")];
        let read = |more: &[(&'static str, &'static str)]| {
            let all: Vec<_> = base.iter().chain(more).copied().collect();
            with(&all)
        };
        let config = read(&[
            ("PHALANX_STREAMS", "4"),
            ("PHALANX_ALGORITHM", "tree"),
            ("PHALANX_SHARED_MEMORY", "0"),
            ("PHALANX_HOST", "left"),
            ("PHALANX_SECRET", "sixteen bytes or more"),
            ("PHALANX_INTERFACE", "127.0.0.9"),
        ]);
        let config = config.expect("complete").expect("a launcher");
        assert_eq!((config.streams, config.algorithm, config.shared_memory), (4, Algorithm::Tree, false));
        assert_eq!(
            (config.host.as_deref(), config.bind_addr.to_string().as_str()),
            (Some("left"), "127.0.0.9")
        );
        assert!(config.secret.is_some());
        for (name, value, says) in [
            ("PHALANX_STREAMS", "0", "1 to 64"),
            ("PHALANX_ALGORITHM", "quick", "halving-doubling"),
            ("PHALANX_SHARED_MEMORY", "no", "0 or 1"),
            ("PHALANX_COSTS", "/nonexistent/costs", "cannot read"),
            ("PHALANX_TLS_KEY", "rank.key", "PHALANX_TLS_CERTIFICATE"),
            ("PHALANX_SECRET", "short", "16"),
            ("PHALANX_SECRET_FILE", "/nonexistent/secret", "cannot read"),
            ("PHALANX_INTERFACE", "nonexistent0", "nonexistent0"),
        ] {
            let error = read(&[(name, value)]).expect_err(name).to_string();
            assert!(error.contains(&name[..11]) && error.contains(says), "{error}");
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
