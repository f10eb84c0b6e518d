//! Settings that libraries read only from the environment.

/// The default settings of the environment.
///
/// candle's elementwise operations use a thread pool with busy-waiting. Our kernels already share the cores among the
/// ranks, so the pool only costs time: a quarter of all time with two ranks on two cores.
///
/// The allocator returns freed pages to the system after some milliseconds. A training step takes longer, so every step
/// would page-fault its activations again.
#[cfg(unix)]
const SETTINGS: &[(&str, &str)] = &[("CANDLE_NUM_THREADS", "1"), ("MIMALLOC_PURGE_DELAY", "10000")];

/// Re-executes this program with the missing settings. Changing the environment of a running process is not safe.
pub(super) fn complete() {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        let missing = || SETTINGS.iter().filter(|(name, _)| std::env::var_os(name).is_none());
        if missing().next().is_none() {
            return;
        }
        if let Ok(program) = std::env::current_exe() {
            let mut command = std::process::Command::new(program);
            // `exec` returns only on failure. The program then runs slower, but correctly.
            let _ = command.args(std::env::args_os().skip(1)).envs(missing().copied()).exec();
        }
    }
}
