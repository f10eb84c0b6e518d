//! Ranks that tests kill.

use std::process::{Child, Command};

/// The processes that a launcher has started as ranks, in order.
pub(crate) fn ranks_of(launcher: &Child) -> Vec<u32> {
    let found = Command::new("pgrep").args(["-P", &launcher.id().to_string()]).output().expect("pgrep runs");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    found.split_whitespace().map(|id| id.parse().expect("a number")).collect()
}

/// Kills a process at once.
#[allow(dead_code, reason = "not every test kills")]
pub(crate) fn kill(id: u32) {
    assert!(Command::new("kill").args(["-9", &id.to_string()]).status().expect("kill runs").success());
}
