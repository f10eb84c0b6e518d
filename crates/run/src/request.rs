//! Requests of users to a running run: one small file each, in the run's folder.
//!
//! Any process that sees the folder can ask, also one of another host. Rank 0 looks between two steps, takes the files in
//! the order of their names, which begin with the time, and removes each that it has heard.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::RunError;
use super::atomic::replace;

/// Bytes of a file that are read: a request has fewer.
const LONGEST: u64 = 256;

/// Says why a run by the strategy of this name cannot do a request; none if it can. Strategies belong to a higher layer.
pub type Refusal = fn(Request, &str) -> Option<String>;

/// A request to a running run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// To take no further step until [`Request::Resume`].
    Pause,
    /// To go on after [`Request::Pause`].
    Resume,
    /// To save a checkpoint before the next step.
    Save,
    /// To save a checkpoint and end.
    Stop,
    /// To go on without the rank of this number, which leaves; where the world may change.
    Leave(usize),
}

impl Request {
    /// Its name: `pause`, `resume`, `save`, `stop` or `leave`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Save => "save",
            Self::Stop => "stop",
            Self::Leave(_) => "leave",
        }
    }

    /// Returns the contents of its file: its name, and for `leave` the rank's number.
    fn text(self) -> String {
        match self {
            Self::Leave(number) => format!("leave {number}"),
            other => other.name().to_owned(),
        }
    }

    /// Parses the contents of a file.
    fn parse(text: &str) -> Option<Self> {
        let leave =
            text.strip_prefix("leave ").and_then(|number| number.trim().parse().ok()).map(Self::Leave);
        let all = [Self::Pause, Self::Resume, Self::Save, Self::Stop];
        leave.or_else(|| all.into_iter().find(|request| request.name() == text))
    }

    /// True if all ranks do it before the same step, which needs ranks that are never more than a bounded number of steps apart.
    pub fn needs_same_step(self) -> bool {
        matches!(self, Self::Pause | Self::Save)
    }

    /// Asks the run whose requests are in `folder`. The file that is returned is there until the run has heard the
    /// request.
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

    /// Takes the requests, the oldest first, and removes their files. A file that holds no request is returned as its
    /// content. Entries that are no files, that may not be removed, or that have vanished are skipped: no content of
    /// the folder ends the run.
    ///
    /// A folder that is not there holds none.
    pub fn take(folder: &Path) -> Vec<Result<Self, String>> {
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let files = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let mut names: Vec<_> = files.map(|entry| entry.file_name()).collect();
        names.retain(|name| !name.to_string_lossy().starts_with('.'));
        names.sort();
        let take = |path: PathBuf| {
            let read = File::open(&path).and_then(|file| {
                let mut bytes = Vec::new();
                file.take(LONGEST).read_to_end(&mut bytes).map(|_| bytes)
            });
            // One that stays would be heard again and again.
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
