//! The report that a failing rank leaves for its supervisor.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::REPLICA_THREAD;
use super::atomic::replace;

/// Why a rank failed, as written to `logs/rank-N.error.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The rank.
    pub rank: usize,
    /// When it failed, in milliseconds since 1970.
    pub time_ms: u64,
    /// The error.
    pub message: String,
    /// True if another rank's failure caused this one.
    pub consequence: bool,
    /// True if the other ranks continue without it.
    #[serde(default)]
    pub left_out: bool,
    /// True if its process ended without a report and the others continue.
    #[serde(default)]
    pub died: bool,
}

impl FailureReport {
    /// A report for this moment.
    pub fn now(rank: usize, message: impl Into<String>, consequence: bool) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            rank,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            message: message.into(),
            consequence,
            left_out: false,
            died: false,
        }
    }

    /// Where rank `rank` reports.
    pub fn path(logs: &Path, rank: usize) -> PathBuf {
        logs.join(format!("rank-{rank}.error.json"))
    }

    /// Where rank `rank` logs.
    pub fn log_path(logs: &Path, rank: usize) -> PathBuf {
        logs.join(format!("rank-{rank}.log"))
    }

    /// Writes the report, unless the rank has reported already: what came first is what counts.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, logs: &Path) -> std::io::Result<()> {
        let path = Self::path(logs, self.rank);
        if path.exists() {
            return Ok(());
        }
        replace(&path, &serde_json::to_vec(self)?)
    }

    /// Returns true if the rank failed by itself. Such a failure ends the run, even one that survives lost ranks.
    pub fn is_own_fault(&self) -> bool {
        !self.consequence && !self.left_out && !self.died
    }

    /// Reads the report of `rank`, if it left one.
    pub fn read(logs: &Path, rank: usize) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(Self::path(logs, rank)).ok()?).ok()
    }

    /// Turns every panic of this process into a report and ends the process. Otherwise a rank would wait for ever for a
    /// helper thread that has panicked, and the other ranks for that rank. The message also goes to `also`, such as the
    /// log. Loaders return the panics of their own threads as errors, as do the threads that start replicas
    /// ([`REPLICA_THREAD`]).
    pub fn on_panic(logs: &Path, rank: usize, also: impl Fn(&str) + Send + Sync + 'static) {
        let logs = logs.to_owned();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let message = text.unwrap_or("a value that is no text");
            let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line()));
            let message = format!("panicked{}: {message}", place.unwrap_or_default());
            let thread = std::thread::current();
            let caught = |name: &str| name.starts_with("phalanx-data") || name.starts_with(REPLICA_THREAD);
            let caught = thread.name().is_some_and(caught);
            also(&format!("{message}\n{}", std::backtrace::Backtrace::force_capture()));
            if caught {
                return;
            }
            // If even the report cannot be written, the exit code still says that something failed.
            let _ = Self::now(rank, message, false).write(&logs);
            std::process::exit(101);
        }));
    }
}
