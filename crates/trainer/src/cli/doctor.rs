//! `phalanx doctor`: what the program finds on this machine; the text to put into a bug report.

use clap::Args;
use phalanx_tensor::Level;

use super::CliError;
use crate::console::{format, out};
use crate::run::Machine;

/// Says what the program finds on this machine.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {}

pub(super) fn run(_: &DoctorArgs) -> Result<(), CliError> {
    let machine = Machine::detect();
    let memory = machine.memory_bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
    let build = if cfg!(debug_assertions) { "debug: ten times slower than release" } else { "release" };
    let features =
        if machine.features.is_empty() { "none known".to_owned() } else { machine.features.join(" ") };
    for (name, value) in [
        ("version", machine.version),
        ("build", build.to_owned()),
        ("system", machine.system),
        ("processor", machine.processor),
        ("cores", machine.cores.to_string()),
        ("features", features),
        ("kernels", Level::from_env().map_or_else(|error| error.to_string(), |level| level.to_string())),
        ("memory", memory),
    ] {
        out(&format!("{name:<10} {value}"));
    }
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
        if let Some(value) = std::env::var_os(name) {
            out(&format!("{name:<10} {} (from the environment)", value.to_string_lossy()));
        }
    }
    Ok(())
}
