//! The report that a failing rank writes for its supervisor.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::REPLICA_THREAD;
use super::atomic::replace;

/// The failure of a rank, as written to `logs/rank-N.error.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailureReport {
    /// The rank.
    pub rank: usize,
    /// The time of the failure, in milliseconds since 1970.
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
    /// The ranks that caused the failure, if this rank only noticed it: those that hung or were lost.
    #[serde(default)]
    pub blamed: Vec<usize>,
}

impl FailureReport {
    /// Creates a report with the current time.
    pub fn now(rank: usize, message: impl Into<String>, consequence: bool) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            rank,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            message: message.into(),
            consequence,
            left_out: false,
            died: false,
            blamed: Vec::new(),
        }
    }

    /// Returns the path of the report of `rank`.
    pub fn path(logs: &Path, rank: usize) -> PathBuf {
        logs.join(format!("rank-{rank}.error.json"))
    }

    /// Returns the path of the log of `rank`.
    pub fn log_path(logs: &Path, rank: usize) -> PathBuf {
        logs.join(format!("rank-{rank}.log"))
    }

    /// Writes the report, unless the rank has already written one: the first failure counts.
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

    /// Returns true if the rank failed by itself. Such a failure ends even an elastic run.
    pub fn is_own_fault(&self) -> bool {
        !self.consequence && !self.left_out && !self.died
    }

    /// Reads the report of `rank`, if it exists.
    pub fn read(logs: &Path, rank: usize) -> Option<Self> {
        serde_json::from_slice(&Links::Refuse.read(&Self::path(logs, rank)).ok()?).ok()
    }

    /// Installs a panic hook that writes a report and ends the process. Before, passes the message to `also`, for example
    /// the log, with true if the process ends. Threads of data loaders and replicas ([`REPLICA_THREAD`]) only log: their parents return the error.
    ///
    /// Without the hook, a rank would wait forever for a helper thread that has panicked.
    pub fn on_panic(logs: &Path, rank: usize, also: impl Fn(&str, bool) + Send + Sync + 'static) {
        let logs = logs.to_owned();
        std::panic::set_hook(Box::new(move |info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            let message = text.unwrap_or("panic payload is no string");
            let place = info.location().map(|place| format!(" at {}:{}", place.file(), place.line()));
            let message = format!("panicked{}: {message}", place.unwrap_or_default());
            let thread = std::thread::current();
            let caught = |name: &str| name.starts_with("phalanx-data") || name.starts_with(REPLICA_THREAD);
            let caught = thread.name().is_some_and(caught);
            also(&format!("{message}\n{}", std::backtrace::Backtrace::force_capture()), !caught);
            if caught {
                return;
            }
            // If the report cannot be written, the exit code still signals the failure.
            let _ = Self::now(rank, message, false).write(&logs);
            std::process::exit(101);
        }));
    }
}
