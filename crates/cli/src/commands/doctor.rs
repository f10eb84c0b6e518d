//! `phalanx doctor`: what the program finds on this machine, which is the text to put into a bug report, and between hosts.

mod hosts;

use std::path::PathBuf;

use clap::Args;
use phalanx_collectives::Launcher;
use phalanx_tensor::Level;

use super::error::CliError;
use phalanx_run::format;

use crate::console::out;
use phalanx_run::Machine;

/// Check this machine, or all hosts of a job: devices, libraries, links, clocks and shared folders.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    /// Check the hosts on which a launcher has started this, as in `srun phalanx doctor --hosts`.
    #[arg(long)]
    hosts: bool,
    /// A file or folder that must be the same on all hosts.
    #[arg(long, value_name = "PATH", requires = "hosts")]
    data: Option<PathBuf>,
    /// The factor above the median of all pairs at which two hosts count as too slow.
    #[arg(long, default_value_t = 3.0, requires = "hosts")]
    slow: f64,
}

pub(super) fn run(args: &DoctorArgs) -> Result<(), CliError> {
    if args.hosts {
        return hosts::run(args.data.as_deref(), args.slow);
    }
    let machine = Machine::detect();
    let memory = machine.memory_bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
    let build = if cfg!(debug_assertions) { "debug: ten times slower than release" } else { "release" };
    let features =
        if machine.features.is_empty() { "none known".to_owned() } else { machine.features.join(" ") };
    for (name, value) in [
        ("version", machine.version),
        ("build", build.to_owned()),
        ("system", machine.system),
        ("CPU", machine.processor),
        ("cores", machine.cores.to_string()),
        ("features", features),
        ("kernels", Level::from_env().map_or_else(|error| error.to_string(), |level| level.to_string())),
        ("memory", memory),
    ] {
        out(&format!("{name:<10} {value}"));
    }
    gpus();
    if let Some(launcher) = Launcher::of(&|name| std::env::var(name).ok()) {
        out(&format!("{:<10} {launcher}", "launcher"));
    }
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
        if let Some(value) = std::env::var_os(name) {
            out(&format!("{name:<10} {} (from the environment)", value.to_string_lossy()));
        }
    }
    Ok(())
}

/// The libraries that training on GPUs loads, the GPUs, and whether each computes right.
#[cfg(feature = "cuda")]
fn gpus() {
    use std::time::Duration;

    use phalanx_cuda::libraries::{FoundLibrary, Library};
    use phalanx_cuda::nvml::Monitor;
    use phalanx_cuda::{Device, Gpu, GpuError, Options, self_test};

    for library in Library::ALL {
        let found = match library.find() {
            Ok(FoundLibrary { file, version }) => format!("{version} ({file})"),
            Err(GpuError::MissingLibrary { tried, purpose, .. }) => {
                format!("not there; it {purpose}; tried {}", tried.join(", "))
            }
            Err(error) => error.to_string(),
        };
        let name = library.name().trim_start_matches("the CUDA ");
        out(&format!("{name:<10} {found}"));
    }
    let count = match Device::count() {
        Ok(count) => count,
        Err(error) => return out(&format!("{:<10} {error}", "GPUs")),
    };
    if count == 0 {
        out(&format!("{:<10} none", "GPUs"));
    }
    for index in 0..count {
        let examine = || -> Result<String, GpuError> {
            let gpu = Gpu::new(index, &Options::default())?;
            let about = gpu.device().description().clone();
            let (free, all) = gpu.device().memory()?;
            let (major, minor) = about.capability;
            let mut text = format!(
                "{}, compute capability {major}.{minor}, {} multiprocessors, {} of {} free",
                about.name,
                about.multiprocessors,
                format::bytes(free as u64),
                format::bytes(all as u64),
            );
            if let Some(power) = Monitor::new(gpu.device()).and_then(|monitor| monitor.read())?.power {
                text += &format!(", {power:.0} W");
            }
            let outcome = self_test::run(&gpu, Duration::from_secs(1))?;
            let teraflops = outcome.flops / 1e12;
            Ok(format!("{text}; self-test passed, {teraflops:.3} TFLOP/s in f32 at {0}x{0}", outcome.size))
        };
        let found = examine().unwrap_or_else(|error| format!("self-test failed: {error}"));
        out(&format!("{:<10} {found}", format!("GPU {index}")));
    }
    if count > 1 {
        match phalanx_cuda::nvml::links() {
            Ok(links) => links.iter().for_each(|link| out(&format!("{:<10} {link}", "link"))),
            Err(error) => out(&format!("{:<10} unknown: {error}", "links")),
        }
    }
    if count > 0 {
        out(&format!("{:<10} {}", "to hosts", phalanx_collectives::nccl::network()));
    }
}

#[cfg(not(feature = "cuda"))]
fn gpus() {
    out(&format!("{:<10} this program was built without its feature `cuda`", "GPUs"));
}
