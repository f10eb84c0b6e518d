//! Processes of a run: names that mark supervised ones and threads of ranks, and the question whether one is alive.

/// The environment variable that is set if standard input is a pipe from the supervisor.
pub const SUPERVISED: &str = "PHALANX_SUPERVISED";

/// The prefix of the names of threads that run a rank; the rank number follows. The parent thread turns a panic of such
/// a thread into an error.
pub const REPLICA_THREAD: &str = "phalanx-replica-";

/// Returns true if a process of this host is alive; `None` if the system does not tell.
pub(crate) fn is_process_alive(process: u32) -> Option<bool> {
    #[cfg(unix)]
    {
        use rustix::process::{Pid, test_kill_process};
        let pid = Pid::from_raw(i32::try_from(process).ok()?)?;
        // A process of another user exists even if signalling it is not permitted. A zombie counts as ended.
        let exists = !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH));
        let about = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        let has_ended =
            about.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']));
        Some(exists && !has_ended)
    }
    #[cfg(not(unix))]
    {
        let _ = process;
        None
    }
}
