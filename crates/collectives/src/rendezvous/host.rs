//! Names of hosts, machines and processes.

use crate::config::WorldConfig;
use crate::control::Process;

/// Returns the name of this rank's host: the configured one and that of the machine.
pub(crate) fn host_name(config: &WorldConfig) -> String {
    format!("{} {}", config.host.as_deref().unwrap_or_default(), machine_name(config))
}

/// Returns this process, in a form that ranks of the same machine can inspect.
pub(crate) fn this_process(config: &WorldConfig) -> Process {
    Process::this(host_name(config))
}

/// Returns a name that only processes of this machine have. Another boot counts as another machine, and so does another namespace
/// of process numbers, in which descriptors cannot be opened.
#[cfg(target_os = "linux")]
pub(crate) fn machine_name(_: &WorldConfig) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let namespace = std::fs::read_link("/proc/self/ns/pid").map(|path| path.display().to_string());
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), namespace.unwrap_or_default())
}

/// Returns one name for all ranks on loopback, and a different one for each other rank.
#[cfg(not(target_os = "linux"))]
pub(crate) fn machine_name(config: &WorldConfig) -> String {
    if config.meeting.bind_addr.is_loopback() { String::new() } else { config.rank.to_string() }
}
