//! Processes that a training consists of, as the system lists them, and signals to them.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// The processes that `parent` has started, with the ranks that their environments say.
pub(crate) fn ranks_of(parent: u32) -> Vec<(usize, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok) {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name before the parent's number may contain anything (proc_pid_stat(5)).
        let fields =
            stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().nth(1).map(str::parse::<u32>));
        if fields != Some(Some(Ok(parent))) {
            continue;
        }
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let rank = environment.split(|byte| *byte == 0).find_map(|variable| {
            String::from_utf8_lossy(variable).strip_prefix("RANK=").and_then(|rank| rank.parse().ok())
        });
        found.extend(rank.map(|rank: usize| (rank, id)));
    }
    found.sort_unstable();
    found
}

/// Sends a signal, by its name without `SIG`; a process that has ended meanwhile has.
pub(crate) fn signal(process: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &process.to_string()]).stderr(Stdio::null());
    kill.status().context("cannot run kill")?;
    Ok(())
}
