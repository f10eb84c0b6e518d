//! The processes of a training, from the system's list, and signals to them.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

/// Returns the child processes of `parent`, with the ranks from their environments.
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

/// Sends a signal, by its name without `SIG`. A process that has ended is not an error.
pub(crate) fn signal(process: u32, name: &str) -> Result<()> {
    let mut kill = Command::new("kill");
    kill.args([&format!("-{name}"), &process.to_string()]).stderr(Stdio::null());
    kill.status().context("cannot run kill")?;
    Ok(())
}

/// Shuts all TCP connections of a process, like a network failure. Returns true if it had one. Both ends see a closed
/// connection.
#[cfg(target_os = "linux")]
pub(crate) fn cut(process: u32) -> Result<bool> {
    use std::net::{Shutdown, TcpStream};
    use std::os::fd::AsFd as _;

    use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

    let Some(id) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return Ok(false) };
    // A process that has ended has no connections.
    let Ok(handle) = pidfd_open(id, PidfdFlags::empty()) else { return Ok(false) };
    let mut found = false;
    for entry in std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().filter_map(Result::ok)
    {
        let is_socket =
            std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:"));
        let Some(number) =
            entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| is_socket)
        else {
            continue;
        };
        let Ok(socket) = pidfd_getfd(handle.as_fd(), number, PidfdGetfdFlags::empty()) else { continue };
        let socket = TcpStream::from(socket);
        // A socket without a peer address is not a network connection.
        if socket.peer_addr().is_ok() && socket.shutdown(Shutdown::Both).is_ok() {
            found = true;
        }
    }
    Ok(found)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn cut(_: u32) -> Result<bool> {
    anyhow::bail!("connections of other processes are cut on Linux alone")
}
