//! Requests of users to a running run: one small file for each, in the run's folder.
//!
//! Any process that sees the folder can send a request, also from another host. Rank 0 polls the folder between steps.
//! It reads the files in the order of their names, which begin with the time, and removes each after reading.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::replace;

/// The maximum number of bytes read from a request file.
const LONGEST: u64 = 256;

/// Returns the reason why a run with the strategy of this name refuses a request; `None` if it accepts. A callback
/// because strategies belong to a higher layer.
pub type Refusal = fn(Request, &str) -> Option<String>;

/// A request to a running run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Take no further step until [`Request::Resume`].
    Pause,
    /// Continue after [`Request::Pause`].
    Resume,
    /// Save a checkpoint before the next step.
    Save,
    /// Save a checkpoint and end the run.
    Stop,
    /// Remove the rank of this number and continue without it. Elastic runs only.
    Leave(usize),
}

impl Request {
    /// Returns the name: `pause`, `resume`, `save`, `stop` or `leave`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Save => "save",
            Self::Stop => "stop",
            Self::Leave(_) => "leave",
        }
    }

    /// Returns the contents of the request file: the name, and for `leave` the rank number.
    fn text(self) -> String {
        match self {
            Self::Leave(number) => format!("leave {number}"),
            other => other.name().to_owned(),
        }
    }

    /// Parses the contents of a request file.
    fn parse(text: &str) -> Option<Self> {
        let leave =
            text.strip_prefix("leave ").and_then(|number| number.trim().parse().ok()).map(Self::Leave);
        let all = [Self::Pause, Self::Resume, Self::Save, Self::Stop];
        leave.or_else(|| all.into_iter().find(|request| request.name() == text))
    }

    /// Returns true if all ranks must act before the same step. Strategies with unbounded staleness refuse these.
    pub fn needs_same_step(self) -> bool {
        matches!(self, Self::Pause | Self::Save)
    }

    /// Writes the request to `folder`. Returns the file, which the run removes when it takes the request.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn post(self, folder: &Path) -> Result<PathBuf, RunError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        fs::create_dir_all(folder).map_err(RunError::io("create", folder))?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{now:020}-{}-{count}", std::process::id());
        let path = folder.join(name);
        replace(&path, self.text().as_bytes()).map_err(RunError::io("write", &path))?;
        Ok(path)
    }

    /// Reads all requests, the oldest first, and removes their files. For a file without a valid request, returns its
    /// content as `Err`. Skips entries that are no files, cannot be removed, or have vanished: no content of the folder
    /// may end the run. A missing folder holds no requests.
    pub fn take(folder: &Path) -> Vec<Result<Self, String>> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<_> = files.map(|entry| entry.file_name()).collect();
        names.retain(|name| !name.to_string_lossy().starts_with('.'));
        names.sort();
        let take = |path: PathBuf| {
            let read = Links::Refuse.open(&path).and_then(|file| {
                let mut bytes = Vec::new();
                file.take(LONGEST).read_to_end(&mut bytes).map(|_| bytes)
            });
            // A file that cannot be removed would be read again and again.
            fs::remove_file(&path).ok()?;
            Some(match read {
                Ok(bytes) => {
                    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
                    Self::parse(&text).ok_or(text)
                }
                Err(error) => Err(format!("{}, which cannot be read: {error}", path.display())),
            })
        };
        names.into_iter().filter_map(|name| take(folder.join(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_taken_once_in_the_order_in_which_they_were_made() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = place.path().join("requests");
        assert_eq!(Request::take(&folder), [], "no folder is no request");
        let asked = [Request::Save, Request::Pause, Request::Resume, Request::Leave(12), Request::Stop];
        let files = asked.map(|request| request.post(&folder).expect("writes"));
        assert!(files.iter().all(|file| file.exists()));
        fs::write(folder.join(".half"), "sa").expect("writes");
        fs::write(folder.join("99999999999999999999-x"), "dance\n").expect("writes");
        let mut expected: Vec<Result<Request, String>> = asked.map(Ok).to_vec();
        expected.push(Err("dance".to_owned()));
        // Nothing that lies there ends the run, or is heard twice.
        fs::create_dir(folder.join("00-folder")).expect("makes");
        fs::write(folder.join("99999999999999999999-y"), "x".repeat(10_000)).expect("writes");
        expected.push(Err("x".repeat(256)));
        assert_eq!(Request::take(&folder), expected);
        assert!(!files.iter().any(|file| file.exists()));
        assert_eq!(Request::take(&folder), []);
    }
}
