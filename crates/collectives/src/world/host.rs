//! Which ranks are on one host.

use super::config::WorldConfig;
use crate::algorithms::{Group, gathered};
use crate::engine::Native;
use crate::error::Result;

/// What tells hosts apart.
#[derive(Debug, Clone)]
pub(crate) struct Host(String);

impl Host {
    /// The machine that this rank runs on, or what its configuration calls it.
    pub(super) fn of(config: &WorldConfig) -> Self {
        Self(format!("{} {}", config.host.as_deref().unwrap_or_default(), machine(config)))
    }
}

/// A name that only processes of this machine have: another boot is another machine, and so is another space of process
/// numbers, in which descriptors cannot be opened.
#[cfg(target_os = "linux")]
fn machine(_: &WorldConfig) -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let space = std::fs::read_link("/proc/self/ns/pid").map(|path| path.display().to_string());
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), space.unwrap_or_default())
}

/// Ranks on loopback are on one machine; others are taken to be on machines of their own.
#[cfg(not(target_os = "linux"))]
fn machine(config: &WorldConfig) -> String {
    if config.bind_addr.is_loopback() { String::new() } else { config.rank.to_string() }
}

/// Numbers the hosts of all ranks; the ranks of this one's host.
pub(crate) fn number_hosts(native: &mut Native, host: &Host) -> Result<Group> {
    let all = native.everybody();
    let names = gathered::all_gather(native, &all, host.0.as_bytes())?;
    let mut known: Vec<&Vec<u8>> = Vec::new();
    native.hosts.clear();
    for name in &names {
        let number = known.iter().position(|other| *other == name).unwrap_or(known.len());
        if number == known.len() {
            known.push(name);
        }
        native.hosts.push(number);
    }
    let own = native.hosts[native.rank];
    let here = (0..native.world_size).filter(|rank| native.hosts[*rank] == own).collect();
    Ok(Group::of(here, native.rank).unwrap_or_else(|| Group::world(1, 0)))
}
