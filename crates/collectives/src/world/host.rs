//! What tells hosts apart.

use super::config::WorldConfig;
use crate::control::Process;

/// The name of the machine that this rank runs on, with what its configuration calls it.
pub(super) fn name(config: &WorldConfig) -> String {
    format!("{} {}", config.host.as_deref().unwrap_or_default(), machine(config))
}

/// This process, as ranks of the same machine can look at it.
pub(super) fn process(config: &WorldConfig) -> Process {
    Process::this(name(config))
}

/// A name that only processes of this machine have: another boot is another machine, and so is another space of process
/// numbers, in which descriptors cannot be opened.
#[cfg(target_os = "linux")]
pub(super) fn machine(_: &WorldConfig) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let space = std::fs::read_link("/proc/self/ns/pid").map(|path| path.display().to_string());
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), space.unwrap_or_default())
}

/// Ranks on loopback are on one machine; others are taken to be on machines of their own.
#[cfg(not(target_os = "linux"))]
pub(super) fn machine(config: &WorldConfig) -> String {
    if config.bind_addr.is_loopback() { String::new() } else { config.rank.to_string() }
}
