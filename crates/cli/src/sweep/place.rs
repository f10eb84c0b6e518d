//! The folder of a sweep: its runs, and the settings with which each began.

use std::path::{Path, PathBuf};

use super::trials::Run;
use phalanx_config::{Detail, Resolved};
use phalanx_run::{RunFolder, Summary};

/// The folder of a sweep.
#[derive(Debug, Clone, Copy)]
pub struct SweepFolder<'a>(pub &'a Path);

impl SweepFolder<'_> {
    /// The folder of a run.
    pub fn run(&self, run: &Run) -> PathBuf {
        self.0.join("runs").join(&run.name)
    }

    /// The output of a run.
    pub fn log(&self, run: &Run) -> PathBuf {
        self.0.join("runs").join(format!("{}.log", run.name))
    }

    /// The file with a run's settings, as they were when it began.
    pub fn config(&self, run: &Run) -> PathBuf {
        self.0.join("configs").join(format!("{}.toml", run.name))
    }

    /// Returns true if the folder of a run holds one of other settings.
    pub fn differs(&self, run: &Run, resolved: &Resolved) -> bool {
        let Ok(text) = std::fs::read_to_string(self.config(run)) else { return false };
        text != resolved.to_toml(Detail::Values)
    }

    /// Returns true if a run has finished.
    pub fn is_finished(&self, run: &Run) -> bool {
        let summary = RunFolder::open(&self.run(run)).ok().map(|folder| folder.summary());
        let summary = summary.and_then(|path| Summary::read(&path).ok());
        summary.is_some_and(|summary| summary.status == "finished")
    }
}
