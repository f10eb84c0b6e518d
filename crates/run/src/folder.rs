//! The folder of a run. A new run never overwrites an existing folder.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::atomic::create_synced;
use super::clock::timestamp;

/// The error of opening or creating a run's folder.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The folder of a new run already holds a run.
    #[error("{} already holds a run; continue it with --resume, or choose another folder with --out", .0.display())]
    Exists(PathBuf),
    /// The folder of a new run is not empty.
    #[error("{} is not empty and holds no run; choose another folder with --out", .0.display())]
    NotEmpty(PathBuf),
    /// The folder holds no run.
    #[error("{} holds no run: it has no config.toml", .0.display())]
    NoRun(PathBuf),
    /// No run of this name exists.
    #[error("there is no run of `{name}` in {} to resume; name its folder with --out", runs.display())]
    NothingToResume {
        /// The preset's name.
        name: String,
        /// The folder that was searched.
        runs: PathBuf,
    },
    /// Another process trains the run.
    #[error(
        "{} is being trained by {}; wait for its end or stop it, then resume the run", folder.display(), holder
    )]
    Locked {
        /// The run's folder.
        folder: PathBuf,
        /// The process, in words.
        holder: String,
    },
    /// An I/O operation on a file or folder failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// The attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The content of a file is invalid.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
}

impl RunError {
    /// Returns a constructor of the error that `action` failed on `path`.
    pub fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { action, path: path.to_owned(), source }
    }
}

/// The folder of one run. The [module](super) lists its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// Creates the folder of a new run: `out`, or `runs/NAME-TIME`.
    ///
    /// # Errors
    /// [`RunError::Exists`] or [`RunError::NotEmpty`] if the folder is in use.
    pub fn create(out: Option<&Path>, runs: &Path, name: &str) -> Result<Self, RunError> {
        let path = match out {
            Some(out) => out.to_owned(),
            None => {
                let stem = format!("{name}-{}", timestamp());
                // Two runs may start within one second.
                let names = (1..).map(|n| if n == 1 { stem.clone() } else { format!("{stem}-{n}") });
                let mut paths = names.map(|name| runs.join(name));
                paths.find(|path| !path.exists()).unwrap_or_else(|| runs.join(&stem))
            }
        };
        if path.join("config.toml").exists() {
            return Err(RunError::Exists(path));
        }
        if fs::read_dir(&path).is_ok_and(|entries| entries.flatten().any(|entry| is_foreign(&entry))) {
            return Err(RunError::NotEmpty(path));
        }
        let folder = Self(path);
        for part in [folder.checkpoints(), folder.samples(), folder.logs()] {
            create_synced(&part).map_err(RunError::io("create", &part))?;
        }
        Ok(folder)
    }

    /// Opens the folder of an existing run.
    ///
    /// # Errors
    /// [`RunError::NoRun`] if the folder holds no run.
    pub fn open(path: &Path) -> Result<Self, RunError> {
        if !path.join("config.toml").is_file() {
            return Err(RunError::NoRun(path.to_owned()));
        }
        let folder = Self(path.to_owned());
        for part in [folder.checkpoints(), folder.samples(), folder.logs()] {
            create_synced(&part).map_err(RunError::io("create", &part))?;
        }
        Ok(folder)
    }

    /// Clears the folder for another run if this run never took a step, for example because its data is missing. Keeps
    /// the logs, and moves the configuration to them. Returns true if the folder was cleared.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn release_unless_started(&self) -> Result<bool, RunError> {
        let is_empty = |path: &Path| fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        let has_metrics = fs::metadata(self.metrics()).is_ok_and(|metrics| metrics.len() > 0);
        let known = [
            "config.toml",
            "run.json",
            "start.proposed",
            "metrics.jsonl",
            "metrics-by-rank.jsonl",
            "state.json",
            "weights.json",
            "requests",
            "joins",
            "checkpoints",
            "samples",
            "logs",
            "lock",
        ];
        let foreign = |entry: fs::DirEntry| !known.iter().any(|name| entry.file_name() == *name);
        let mut entries = fs::read_dir(&self.0).map_err(RunError::io("read", &self.0))?.flatten();
        if has_metrics
            || entries.any(foreign)
            || ![self.checkpoints(), self.samples()].iter().all(|part| is_empty(part))
        {
            return Ok(false);
        }
        for part in [self.checkpoints(), self.samples()] {
            fs::remove_dir(&part).map_err(RunError::io("remove", &part))?;
        }
        let files = [
            self.metrics(),
            self.metrics_by_rank(),
            self.state(),
            self.weights(),
            self.starts(),
            self.proposed_start(),
        ];
        for file in files.into_iter().filter(|file| file.exists()) {
            fs::remove_file(&file).map_err(RunError::io("remove", &file))?;
        }
        if self.requests().exists() {
            fs::remove_dir_all(self.requests()).map_err(RunError::io("remove", &self.requests()))?;
        }
        // Kept, so that the user can see the cause of the failure.
        if self.config().exists() {
            let kept = self.logs().join("config.toml");
            fs::rename(self.config(), &kept).map_err(RunError::io("write", &kept))?;
        }
        Ok(true)
    }

    /// Opens the folder on a rank other than 0. Creates it if rank 0 has not done so yet.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn join(path: &Path) -> Result<Self, RunError> {
        let folder = Self(path.to_owned());
        create_synced(&folder.logs()).map_err(RunError::io("create", path))?;
        Ok(folder)
    }

    /// Opens the newest run `NAME-…` in `runs`.
    ///
    /// # Errors
    /// [`RunError::NothingToResume`] if no such run exists.
    pub fn newest(runs: &Path, name: &str) -> Result<Self, RunError> {
        let prefix = format!("{name}-");
        let is_run = |path: &PathBuf| {
            let named = path.file_name().and_then(std::ffi::OsStr::to_str).is_some_and(|file| {
                // `shapes-cvae-2025…` is no run of `shapes`: a year must follow the prefix.
                file.strip_prefix(&prefix).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            });
            named && path.join("config.toml").is_file()
        };
        let entries = fs::read_dir(runs).into_iter().flatten().filter_map(Result::ok);
        let newest = entries.map(|entry| entry.path()).filter(is_run).max();
        let nothing = || RunError::NothingToResume { name: name.to_owned(), runs: runs.to_owned() };
        Self::open(&newest.ok_or_else(nothing)?)
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The resolved configuration.
    pub fn config(&self) -> PathBuf {
        self.0.join("config.toml")
    }

    /// The configuration of a resumption until it is accepted. Ranks that start before that read it.
    pub fn proposed_config(&self) -> PathBuf {
        self.0.join("config.proposed.toml")
    }

    /// The file that exists while a resumption is proposed that begins with fresh optimizer state.
    pub fn proposed_reset(&self) -> PathBuf {
        self.0.join("reset.proposed")
    }

    /// The start of a run or a resumption until it is accepted.
    pub fn proposed_start(&self) -> PathBuf {
        self.0.join("start.proposed")
    }

    /// Removes the proposed resumption: it was accepted or refused.
    pub fn withdraw_proposal(&self) {
        for file in [self.proposed_reset(), self.proposed_config(), self.proposed_start()] {
            // There is none unless a launcher has proposed it.
            let _ = fs::remove_file(file);
        }
    }

    /// The lock of the process that trains the run.
    pub fn lock(&self) -> PathBuf {
        self.0.join("lock")
    }

    /// The step of the newest checkpoint that was ever saved. It remains if `checkpoints/` is lost.
    pub fn saved(&self) -> PathBuf {
        self.0.join("saved")
    }

    /// The fingerprint of the data.
    pub fn data(&self) -> PathBuf {
        self.0.join("data.json")
    }

    /// The weights that the run began with, and their use.
    pub fn weights(&self) -> PathBuf {
        self.0.join("weights.json")
    }

    /// The damaged images that were replaced by others, one a line, as a list for `data.exclude`.
    pub fn damaged(&self) -> PathBuf {
        self.0.join("damaged.txt")
    }

    /// The metrics: one line for each logged step.
    pub fn metrics(&self) -> PathBuf {
        self.0.join("metrics.jsonl")
    }

    /// The starts of the run.
    pub fn starts(&self) -> PathBuf {
        self.0.join("run.json")
    }

    /// The metrics by rank, under strategies whose ranks do not take every step together.
    pub fn metrics_by_rank(&self) -> PathBuf {
        self.0.join("metrics-by-rank.jsonl")
    }

    /// The state of the run.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The folder of requests of users.
    pub fn requests(&self) -> PathBuf {
        self.0.join("requests")
    }

    /// The folder of processes that wait to join.
    pub fn joins(&self) -> PathBuf {
        self.0.join("joins")
    }

    /// The file with the secret of the ranks. It exists while the run can be joined.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// The summary of the run.
    pub fn summary(&self) -> PathBuf {
        self.0.join("summary.json")
    }

    /// The chart of the loss.
    pub fn curves(&self) -> PathBuf {
        self.0.join("curves.svg")
    }

    /// The chart of staleness and waiting times.
    pub fn synchrony(&self) -> PathBuf {
        self.0.join("synchrony.svg")
    }

    /// The folder of checkpoints.
    pub fn checkpoints(&self) -> PathBuf {
        self.0.join("checkpoints")
    }

    /// The folder of sample grids.
    pub fn samples(&self) -> PathBuf {
        self.0.join("samples")
    }

    /// The folder of the last evaluation's pictures and numbers: of a classifier, or of images that were judged.
    pub fn evaluation(&self) -> PathBuf {
        self.0.join("evaluation")
    }

    /// The folder of logs.
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// The resource usage of one rank over time.
    pub fn usage(&self, rank: usize) -> PathBuf {
        self.logs().join(format!("rank-{rank}.usage.jsonl"))
    }

    /// The trace of all ranks.
    pub fn trace(&self) -> PathBuf {
        self.0.join("trace.json")
    }

    /// The trace of one rank, written if the run failed.
    pub fn trace_of_rank(&self, rank: usize) -> PathBuf {
        self.logs().join(format!("rank-{rank}.trace.json"))
    }

    /// The log of one rank.
    pub fn log(&self, rank: usize) -> PathBuf {
        super::FailureReport::log_path(&self.logs(), rank)
    }
}

/// Returns true if an entry of a folder is not a leftover of a run that never started. Ranks on other hosts may already have created
/// `logs`, and a full disk leaves empty folders and files.
fn is_foreign(entry: &fs::DirEntry) -> bool {
    let name = entry.file_name();
    if ["logs", "lock", ".config.toml.tmp"].iter().any(|known| name == *known) {
        return false;
    }
    let is_own = ["checkpoints", "samples"].iter().any(|known| name == *known);
    !(is_own && fs::read_dir(entry.path()).is_ok_and(|mut entries| entries.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_anything_in_it_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("run");
        let run = RunFolder::create(Some(&out), folder.path(), "x").expect("a new folder");
        assert!(matches!(RunFolder::open(&out), Err(RunError::NoRun(_))));
        // As a full disk leaves it.
        assert_eq!(RunFolder::create(Some(&out), folder.path(), "x").expect("empty"), run);
        for (foreign, is_in) in [("notes.txt", out.clone()), ("step-1", run.checkpoints())] {
            fs::write(is_in.join(foreign), "").expect("writes");
            let refused = RunFolder::create(Some(&out), folder.path(), "x");
            assert!(matches!(refused, Err(RunError::NotEmpty(_))), "{foreign}");
            fs::remove_file(is_in.join(foreign)).expect("removes");
        }
        fs::write(run.config(), "").expect("writes");
        assert!(matches!(RunFolder::create(Some(&out), folder.path(), "x"), Err(RunError::Exists(_))));
        assert_eq!(RunFolder::open(&out).expect("a run"), run);
    }

    #[test]
    fn the_newest_run_of_a_name_is_found() {
        let runs = tempfile::tempdir().expect("a folder");
        for name in ["a-20250101-000000", "a-20250102-000000", "a-b-20260101-000000", "c-20260101-000000"] {
            fs::create_dir(runs.path().join(name)).expect("a folder");
            fs::write(runs.path().join(name).join("config.toml"), "").expect("writes");
        }
        let newest = RunFolder::newest(runs.path(), "a").expect("a run");
        assert!(newest.path().ends_with("a-20250102-000000"));
        assert!(matches!(RunFolder::newest(runs.path(), "d"), Err(RunError::NothingToResume { .. })));
        let (first, second) = (
            RunFolder::create(None, runs.path(), "n").expect("new"),
            RunFolder::create(None, runs.path(), "n").expect("new"),
        );
        assert_ne!(first, second);
    }
}
