//! Processes that tests wait for, signal and kill.

use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// The time limit of every wait: many times what a slow machine needs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(240);

/// The pause between two looks at what is waited for.
const POLL: Duration = Duration::from_millis(4);

/// Waits until something holds. `report` gives the message of a failure.
pub(crate) fn wait_until(what: &str, report: impl Fn() -> String, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "no {what} within {PATIENCE:?}\n{}", report());
        std::thread::sleep(POLL);
    }
}

/// Waits for a process to end. Kills it after the time limit.
///
/// Its output must not fill a pipe; [`super::Running`] writes to files.
pub(crate) fn ended(mut child: Child, limit: Duration) -> Output {
    let begun = Instant::now();
    while child.try_wait().expect("a child of this process").is_none() {
        if begun.elapsed() > limit {
            child.kill().expect("a child of this process");
            break;
        }
        std::thread::sleep(POLL);
    }
    child.wait_with_output().expect("a child of this process")
}

/// The processes that a launcher has started as ranks, in order.
pub(crate) fn ranks_of(launcher: &Child) -> Vec<u32> {
    let found = Command::new("pgrep").args(["-P", &launcher.id().to_string()]).output().expect("pgrep runs");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    found.split_whitespace().map(|id| id.parse().expect("a number")).collect()
}

/// Sends a signal, as `-TERM`, to a process.
pub(crate) fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().expect("kill runs").success());
}

/// Kills a process at once.
pub(crate) fn kill(process: u32) {
    signal("-9", process);
}

/// Returns true if a process has not ended. One whose parent has not waited for it has.
pub(crate) fn is_alive(process: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{process}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}
