//! Settings that libraries take from the environment alone.

/// The default settings of the environment.
///
/// candle's elementwise operations wake a pool of threads that wait for each other in a loop that burns a core. The
/// kernels here share the cores among the ranks already, so that pool only takes time from them: with two ranks on
/// two cores a quarter of all time.
///
/// The allocator gives freed pages back to the system after some milliseconds, which a training step is longer than:
/// every step would fault its activations in anew.
#[cfg(unix)]
const SETTINGS: &[(&str, &str)] = &[("CANDLE_NUM_THREADS", "1"), ("MIMALLOC_PURGE_DELAY", "10000")];

/// Starts this program anew, in this process, with the settings that are missing. Changing the environment of a
/// running process is not safe, so the process gets a new one.
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
            // This returns only if it fails; then there is less speed, and nothing else is wrong.
            let _ = command.args(std::env::args_os().skip(1)).envs(missing().copied()).exec();
        }
    }
}
