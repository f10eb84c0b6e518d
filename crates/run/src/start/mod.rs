//! `run.json`: the starts of a run, each with its command line, folder, time, host and commit.

mod git;

use std::path::Path;

use phalanx_data::Links;
use serde::{Deserialize, Serialize};

use super::atomic::write_aside;
use super::folder::{RunError, RunFolder};
use super::machine::host_name;
pub use git::GitState;

/// The start of a run, or of a resumption.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunStart {
    /// The command line, with the program first.
    pub command: Vec<String>,
    /// The folder in which the command was given.
    pub folder: String,
    /// The time in UTC, as in RFC 3339.
    pub time: String,
    /// The host.
    pub host: String,
    /// The version of this program.
    pub version: String,
    /// The repository that holds the folder, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitState>,
}

/// The starts of a run, the first one first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RunStarts {
    /// The starts.
    pub starts: Vec<RunStart>,
}

impl RunStart {
    /// The start that this process makes now.
    pub fn now() -> Self {
        let folder = std::env::current_dir().unwrap_or_default();
        Self {
            command: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
            time: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            host: host_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            git: GitState::of(&folder),
            folder: folder.display().to_string(),
        }
    }

    /// Returns the command line as a shell takes it.
    pub fn command_line(&self) -> String {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "_-./=+,:@%".contains(letter);
        let word = |word: &String| match !word.is_empty() && word.chars().all(plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        };
        self.command.iter().map(word).collect::<Vec<_>>().join(" ")
    }
}

impl RunStarts {
    /// Reads the starts of a run; none if it has no record of them.
    ///
    /// # Errors
    /// If the file cannot be read, or is damaged.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let bytes = match Links::Refuse.read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(source) => return Err(RunError::Io { action: "read", path: path.to_owned(), source }),
        };
        serde_json::from_slice(&bytes)
            .map_err(|error| RunError::Malformed { path: path.to_owned(), problem: error.to_string() })
    }
}

impl RunFolder {
    /// Proposes a start. The record gets it once rank 0 has accepted the run's configuration: a refused resumption leaves
    /// the record as it was.
    ///
    /// # Errors
    /// If the proposal cannot be written.
    pub fn propose_start(&self, start: &RunStart) -> Result<(), RunError> {
        write(&self.proposed_start(), start)
    }

    /// Adds the proposed start to the record, if there is one.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn accept_start(&self) -> Result<(), RunError> {
        let path = self.proposed_start();
        let start = Links::Refuse.read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let Some(start) = start else { return Ok(()) };
        // A damaged record must not keep a run from training.
        let mut all = RunStarts::read(&self.starts()).unwrap_or_default();
        all.starts.push(start);
        write(&self.starts(), &all)?;
        std::fs::remove_file(&path).map_err(RunError::io("remove", &path))
    }
}

fn write(path: &Path, value: &impl Serialize) -> Result<(), RunError> {
    let malformed =
        |error: serde_json::Error| RunError::Malformed { path: path.to_owned(), problem: error.to_string() };
    let mut bytes = serde_json::to_vec_pretty(value).map_err(malformed)?;
    bytes.push(b'\n');
    write_aside(path, &bytes).map_err(RunError::io("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_start_is_recorded_once_it_is_accepted() {
        let place = tempfile::tempdir().expect("a folder");
        let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), "x").expect("new");
        assert_eq!(RunStarts::read(&folder.starts()).expect("none"), RunStarts::default());
        let now = RunStart::now();
        assert!(!now.command.is_empty() && now.time.ends_with('Z') && now.time.starts_with("20"), "{now:?}");
        let accept = |start: &RunStart| {
            folder.propose_start(start).expect("writes");
            folder.accept_start().expect("writes");
        };
        accept(&now);
        let command = ["phalanx", "train", "--set", "data.path=b c", "it's", ""].map(str::to_owned).to_vec();
        let other = RunStart { command, ..now.clone() };
        accept(&other);
        folder.propose_start(&now).expect("writes");
        folder.withdraw_proposal();
        folder.accept_start().expect("there is none");
        let read = RunStarts::read(&folder.starts()).expect("reads");
        assert_eq!(read.starts, [now, other.clone()]);
        assert_eq!(other.command_line(), "phalanx train --set 'data.path=b c' 'it'\\''s' ''");
        std::fs::write(folder.starts(), "{").expect("writes");
        assert!(RunStarts::read(&folder.starts()).is_err());
        accept(&other);
        assert_eq!(RunStarts::read(&folder.starts()).expect("reads").starts, [other], "it begins anew");
    }
}
