//! Sends the metrics of runs to an experiment tracker, as the runs write them.
//!
//! Only the run's folder is read, so finished runs, running ones and those of other hosts are sent alike. A run is sent
//! again as a whole by each call: the tracker's copy of it is replaced, not repeated.

mod mlflow;
mod yaml;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::dashboard::{FollowedRun, RunNews};
use mlflow::{MlflowRun, MlflowStore};
use phalanx_run::{RunError, RunFolder};

/// The interval at which files are read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A tracker to send to: MLflow's file store, a folder that MLflow calls `mlruns`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrackTarget {
    /// The folder of the store.
    pub store: PathBuf,
    /// The name of the experiment that the runs belong to.
    pub experiment: String,
}

/// A run and its copy in the tracker.
struct TrackedRun {
    run: FollowedRun,
    copy: MlflowRun,
    folder: PathBuf,
    lines: usize,
    is_over: bool,
}

impl TrackedRun {
    fn begin(folder: &Path, store: &MlflowStore) -> Result<Self, RunError> {
        let run_folder = RunFolder::open(folder)?;
        let copy = MlflowRun::begin(store, &run_folder)?;
        let run = FollowedRun::new(&run_folder);
        Ok(Self { run, copy, folder: folder.to_owned(), lines: 0, is_over: false })
    }

    /// Sends the news of the run. Returns a message once the run has ended.
    fn poll(&mut self) -> Result<Option<String>, RunError> {
        let RunNews { restarted, lines, status } = self.run.poll();
        if restarted {
            self.copy.forget()?;
            self.lines = 0;
        }
        self.lines += lines.len();
        self.copy.add(&lines)?;
        self.copy.set_status(&status)?;
        self.is_over = status.is_over();
        let (folder, count, word) = (self.folder.display(), self.lines, mlflow::word(&status));
        Ok(self.is_over.then(|| format!("{folder}: {count} lines sent, {word}")))
    }
}

/// Sends runs to a tracker until all have ended, or `interrupts` counts a signal. `print` gets a line for each run that
/// has ended. Returns false if a signal came first.
///
/// # Errors
/// If a folder holds no run, or the store cannot be written.
pub fn send(
    runs: &[PathBuf],
    target: &TrackTarget,
    interrupts: &dyn Fn() -> usize,
    print: &mut dyn FnMut(&str),
) -> Result<bool, RunError> {
    let store = MlflowStore::open(&target.store, &target.experiment)?;
    let tracked = runs.iter().map(|folder| TrackedRun::begin(folder, &store));
    let mut tracked = tracked.collect::<Result<Vec<_>, _>>()?;
    loop {
        for run in tracked.iter_mut().filter(|run| !run.is_over) {
            run.poll()?.iter().for_each(|message| print(message));
        }
        if tracked.iter().all(|run| run.is_over) {
            return Ok(true);
        }
        if interrupts() > 0 {
            return Ok(false);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
