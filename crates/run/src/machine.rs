//! The machine, and the memory use of this process.

use serde::{Deserialize, Serialize};

/// The properties of the machine that are readable without privileges.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Machine {
    /// The CPU's name.
    pub processor: String,
    /// The number of cores that this process may use.
    pub cores: usize,
    /// Memory in bytes; `null` if unknown.
    pub memory_bytes: Option<u64>,
    /// The instruction sets that the kernels can use.
    pub features: Vec<String>,
    /// Operating system and architecture.
    pub system: String,
    /// The version of this program.
    pub version: String,
}

impl Machine {
    /// Returns the properties of this machine.
    pub fn detect() -> Self {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            let line = cpuinfo.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let flags = field("flags").or_else(|| field("Features")).unwrap_or_default();
        let known = ["avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16"];
        Self {
            processor: field("model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes("/proc/meminfo", "MemTotal:"),
            features: flags.split(' ').filter(|flag| known.contains(flag)).map(str::to_owned).collect(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}

/// Returns the name of this host.
pub fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim();
    if name.is_empty() { "this host".to_owned() } else { name.to_owned() }
}

/// Returns the peak resident memory of this process in bytes; `None` if unknown.
pub fn peak_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmHWM:")
}

/// Returns the resident memory of this process in bytes; `None` if unknown.
pub fn resident_memory() -> Option<u64> {
    kilobytes("/proc/self/status", "VmRSS:")
}

/// Parses a line `name   1234 kB` of a file in `/proc`. Returns bytes.
fn kilobytes(path: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_is_told_on_linux() {
        let (peak, now) = (peak_memory().expect("VmHWM"), resident_memory().expect("VmRSS"));
        assert!(peak > 1 << 20 && now > 1 << 20, "{peak} {now}");
        assert!(Machine::detect().memory_bytes.expect("MemTotal") > peak);
    }
}
