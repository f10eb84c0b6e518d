//! Keeps candle from starting threads of its own.

/// Starts this program anew, in this process, with `CANDLE_NUM_THREADS=1` unless candle's threads are configured.
///
/// candle's elementwise operations wake a pool of threads that wait for each other in a loop that burns a core. The
/// kernels here share the cores among the ranks already, so that pool only takes time from them: with two ranks on
/// two cores a quarter of all time. candle reads its number of threads from the environment alone, and changing the
/// environment of a running process is not safe, so the process gets a new one.
pub(super) fn candle() {
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        const VARIABLE: &str = "CANDLE_NUM_THREADS";
        if std::env::var_os(VARIABLE).is_some() {
            return;
        }
        if let Ok(program) = std::env::current_exe() {
            let mut command = std::process::Command::new(program);
            // This returns only if it fails; then candle's threads cost time, and nothing else is wrong.
            let _ = command.args(std::env::args_os().skip(1)).env(VARIABLE, "1").exec();
        }
    }
}
