//! The one place that reads the environment: who has started this process ([`Launcher`]), which [`place`] it was given, and what
//! users add to it.

mod launcher;
mod place;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

pub use launcher::Launcher;
use place::Place;

use super::config::WorldConfig;
use super::interface;
use super::pmi;
use super::secret::Secret;
use crate::algorithms::cost::CostModel;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// What PMI's server says: to a rank, together with the addresses of rank 0 if these are wanted, for which all ranks wait.
pub(super) type AskPmi<'a> = &'a dyn Fn(u64, bool) -> Result<pmi::Told>;

/// Who is asked for what variables do not say.
pub(super) struct Ask<'a> {
    /// The server of PMI.
    pub(super) pmi: AskPmi<'a>,
    /// How a node of SLURM is reached.
    pub(super) node: &'a dyn Fn(&str) -> String,
}

/// How many ports belong to a job: rank 0 listens at the first of them that is free.
const PORTS_OF_JOB: u16 = 16;

/// The ports of all jobs: below those that systems give to whoever wants any (from 32768 on Linux, 49152 elsewhere).
const PORTS: std::ops::Range<u16> = 20_000..32_288;

/// How long ranks in pods of Kubernetes wait for each other, some of which have yet to get their image.
const CONNECT_TIMEOUT_OF_PODS: Duration = Duration::from_secs(300);

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

/// The first of the ports that belong to a job of this name: all of its ranks find the same ones, and of jobs that happen to
/// share them each recognises its own.
fn ports_of(job: &str) -> u16 {
    // FNV-1a: every rank must compute the same, whatever it was built with.
    let hash = job.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let blocks = u64::from(PORTS.end - PORTS.start) / u64::from(PORTS_OF_JOB);
    PORTS.start + (hash % blocks) as u16 * PORTS_OF_JOB
}

/// Reads the place of this process from variables that `get` looks up, and from what it has to `ask`.
pub(super) fn read(get: Lookup<'_>, ask: &Ask<'_>) -> Result<Option<WorldConfig>> {
    let Some(place) = place::place(get, ask)? else { return Ok(None) };
    let Place { rank, world_size, local_rank, local_size, job, port, mut master } = place;
    let (master_port, master_ports) = match place::chosen_port(get)?.or(port) {
        Some(port) => (port, 1),
        None if job.is_empty() => (place::DEFAULT_PORT, 1),
        None => (ports_of(&job), PORTS_OF_JOB),
    };
    let bind_addr = match get("PHALANX_INTERFACE") {
        Some(text) => interface::named(text.trim(), &master.address, master_port)
            .map_err(|problem| wrong("PHALANX_INTERFACE", problem))?,
        None if master.by_any_address => interface::any_like(&master.address, master_port),
        None => interface::towards(&master.address, master_port),
    };
    if master.anywhere_here {
        // Rank 0 listens there and nowhere else.
        master.address = interface::reached(bind_addr).to_string();
    }
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
    let in_pod = get("KUBERNETES_SERVICE_HOST").is_some();
    Ok(Some(WorldConfig {
        connect_timeout: if in_pod { CONNECT_TIMEOUT_OF_PODS } else { local.connect_timeout },
        local_rank: local_rank as usize,
        local_world_size: local_size.map_or(1, |size| size as usize),
        job,
        master_addr: master.address,
        master_ports,
        bind_addr,
        shared_memory,
        host: get("PHALANX_HOST").map(|name| name.trim().to_owned()),
        streams,
        secret: secret(get)?,
        costs: costs(get)?,
        algorithm,
        flight_recorder: get("PHALANX_FLIGHT_RECORDER").map(Into::into),
        ..local
    }))
}

/// Whether launchers have set such variables, as far as that needs no network.
#[cfg(any(test, fuzzing))]
pub(super) fn is_placed(get: Lookup<'_>, ask: &Ask<'_>) -> bool {
    place::place(get, ask).is_ok_and(|place| place.is_some())
}

/// The costs in the file that the environment names.
fn costs(get: Lookup<'_>) -> Result<Option<CostModel>> {
    const NAME: &str = "PHALANX_COSTS";
    let Some(path) = get(NAME) else { return Ok(None) };
    let text = std::fs::read(&path).map_err(|error| wrong(NAME, format!("cannot read {path}: {error}")))?;
    let costs = serde_json::from_slice(&text);
    costs.map(Some).map_err(|error| wrong(NAME, format!("{path} holds no costs of links: {error}")))
}

/// The secret in the file that the environment names. What is in the environment itself can be read by other processes of the
/// user, is inherited by whatever is started, and ends up in listings.
fn secret(get: Lookup<'_>) -> Result<Option<Secret>> {
    const NAME: &str = "PHALANX_SECRET_FILE";
    if get("PHALANX_SECRET").is_some() {
        let problem = format!(
            "a secret in the environment is seen by others; write it to a file of mode 600 and name that in {NAME}"
        );
        return Err(wrong("PHALANX_SECRET", problem));
    }
    let read = get(NAME).map(|path| Secret::from_file(Path::new(&path)));
    read.transpose().map_err(|error| wrong(NAME, error.to_string()))
}
