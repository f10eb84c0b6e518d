//! `job.json` in a run's folder: the job that trains it; and `join-N.json`: a job that joins it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ClusterError;
use phalanx_run::{Links, RunError, write_aside};

/// The prefix of the names of joining jobs' records; the job's number follows.
const JOINING: &str = "join-";

/// The job that a run was submitted as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// The scheduler: `slurm`.
    pub scheduler: String,
    /// Its number.
    pub id: u64,
    /// True if it is an array, whose tasks have folders of their own.
    pub array: bool,
    /// When it was submitted, as folders' names have it.
    pub submitted: String,
}

impl JobRecord {
    /// Where the record of a run is.
    pub fn path(run: &Path) -> PathBuf {
        run.join("job.json")
    }

    /// Writes the record of the run in `run`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, run: &Path) -> Result<(), ClusterError> {
        let path = Self::path(run);
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        Ok(write_aside(&path, &text).map_err(RunError::io("write", &path))?)
    }

    /// Writes the record of a job that joins the run in `run`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_joining(&self, run: &Path) -> Result<(), ClusterError> {
        let path = run.join(format!("{JOINING}{}.json", self.id));
        let text = serde_json::to_vec_pretty(self).unwrap_or_default();
        Ok(write_aside(&path, &text).map_err(RunError::io("write", &path))?)
    }

    /// The jobs that were submitted to join the run in `run`, the oldest first.
    ///
    /// # Errors
    /// If the folder or a record cannot be read.
    pub fn joining(run: &Path) -> Result<Vec<Self>, ClusterError> {
        let entries = std::fs::read_dir(run).map_err(RunError::io("read", run))?;
        let is_one = |path: &PathBuf| {
            let name = path.file_name().and_then(std::ffi::OsStr::to_str).unwrap_or_default();
            name.starts_with(JOINING) && name.ends_with(".json")
        };
        let paths = entries.flatten().map(|entry| entry.path()).filter(is_one);
        let mut all = paths.map(|path| Self::read_from(&path)).collect::<Result<Vec<_>, _>>()?;
        all.sort_by_key(|record| record.id);
        Ok(all)
    }

    /// Reads the record of the run in `run`.
    ///
    /// # Errors
    /// [`ClusterError::NotSubmitted`] if it has none; if the file cannot be read.
    pub fn read(run: &Path) -> Result<Self, ClusterError> {
        let path = Self::path(run);
        if !path.exists() {
            return Err(ClusterError::NotSubmitted(run.display().to_string()));
        }
        Self::read_from(&path)
    }

    fn read_from(path: &Path) -> Result<Self, ClusterError> {
        let bytes = Links::Refuse.read(path).map_err(RunError::io("read", path))?;
        let malformed = |error: serde_json::Error| RunError::Malformed {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        Ok(serde_json::from_slice(&bytes).map_err(malformed)?)
    }
}
