//! The findings on one machine.

use std::collections::BTreeMap;

use phalanx_collectives::Launcher;
use phalanx_run::{Machine, format};
use phalanx_tensor::Level;
use serde::Serialize;

use super::gpus::GpuFindings;

/// Variables by which launchers tell a process its rank.
const OF_LAUNCHERS: [&str; 6] =
    ["RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];

/// The findings on this machine.
#[derive(Debug, Serialize)]
pub(super) struct Findings {
    /// `release` or `debug`.
    build: &'static str,
    machine: Machine,
    /// The instruction set of the kernels, or the reason why there is none.
    kernels: String,
    gpus: GpuFindings,
    /// The launcher that has started this process.
    launcher: Option<String>,
    /// Variables of launchers.
    environment: BTreeMap<&'static str, String>,
}

impl Findings {
    /// Examines this machine. Each GPU computes for a second.
    pub(super) fn of_this_machine() -> Self {
        let set = |name: &'static str| Some((name, std::env::var_os(name)?.to_string_lossy().into_owned()));
        Self {
            build: if cfg!(debug_assertions) { "debug" } else { "release" },
            machine: Machine::detect(),
            kernels: Level::from_env().map_or_else(|error| error.to_string(), |level| level.to_string()),
            gpus: GpuFindings::of_this_machine(),
            launcher: Launcher::of(&|name| std::env::var(name).ok()).map(|launcher| launcher.to_string()),
            environment: OF_LAUNCHERS.into_iter().filter_map(set).collect(),
        }
    }

    /// Formats the findings: a line each, and the details too if `verbose`.
    pub(super) fn lines(&self, verbose: bool) -> Vec<String> {
        let machine = &self.machine;
        let memory = machine.memory_bytes.map_or_else(|| "unknown".to_owned(), format::bytes);
        let slow = if self.build == "debug" { ", ten times slower than release" } else { "" };
        let cores = if machine.cores == 1 { "core" } else { "cores" };
        let mut rows = vec![
            ("version", format!("{}, {} build{slow}", machine.version, self.build)),
            ("system", machine.system.clone()),
            ("CPU", format!("{}, {} {cores}, {} kernels", machine.processor, machine.cores, self.kernels)),
            ("memory", memory),
        ];
        if verbose {
            let features = machine.features.join(" ");
            rows.push(("features", if features.is_empty() { "none known".to_owned() } else { features }));
            rows.extend(self.gpus.libraries.iter().map(|library| (library.name, library.found.clone())));
        }
        let mut lines: Vec<String> = rows.iter().map(|(name, value)| line(name, value)).collect();
        lines.extend(self.gpus.rows().iter().map(|(name, value)| line(name, value)));
        lines.extend(self.launcher.iter().map(|launcher| line("launcher", launcher)));
        lines.extend(
            self.environment
                .iter()
                .map(|(name, value)| line(name, &format!("{value} (from the environment)"))),
        );
        lines
    }
}

/// Formats a name and a value.
fn line(name: &str, value: &str) -> String {
    format!("{name:<10} {value}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_gpus_needs_few_words() {
        let machine = Machine {
            processor: "AMD EPYC 9B14".to_owned(),
            cores: 2,
            memory_bytes: Some(24 << 30),
            features: vec!["avx2".to_owned(), "fma".to_owned()],
            system: "linux x86_64".to_owned(),
            version: "1.0.0".to_owned(),
        };
        let mut gpus = GpuFindings::default();
        gpus.none = Some("none (no NVIDIA driver found)".to_owned());
        let found = Findings {
            build: "debug",
            machine,
            kernels: "avx512".to_owned(),
            gpus,
            launcher: None,
            environment: BTreeMap::new(),
        };
        let lines = found.lines(false);
        let words = lines.iter().flat_map(|line| line.split_whitespace()).count();
        assert!(words <= 80 && lines.len() <= 8, "{words} words: {lines:#?}");
        assert!(lines.iter().any(|line| line.contains("no NVIDIA driver")), "{lines:#?}");
        assert!(
            !lines.iter().any(|line| line.contains("avx2"))
                && found.lines(true).iter().any(|line| line.contains("avx2 fma"))
        );
    }
}
