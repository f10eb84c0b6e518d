//! `job.json` in a run's folder: the job that trains it.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ClusterError;
use crate::run::{RunError, write_aside};

/// The job that a run was submitted as.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Who schedules it: `slurm`.
    pub scheduler: String,
    /// Its number.
    pub id: u64,
    /// Whether it is an array, whose tasks have folders of their own.
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

    /// Reads the record of the run in `run`.
    ///
    /// # Errors
    /// [`ClusterError::NotSubmitted`] if it has none; if the file cannot be read.
    pub fn read(run: &Path) -> Result<Self, ClusterError> {
        let path = Self::path(run);
        let bytes = match std::fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(ClusterError::NotSubmitted(run.display().to_string()));
            }
            read => read.map_err(RunError::io("read", &path))?,
        };
        let read = serde_json::from_slice(&bytes);
        Ok(read.map_err(|error| RunError::Malformed { path, problem: error.to_string() })?)
    }
}
