//! Errors of writing and reading checkpoints.

use std::io;
use std::path::{Path, PathBuf};

/// Why a checkpoint cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file or folder cannot be written or read.
    #[error("checkpoint of step {step}: cannot {action} {}: {source}", path.display())]
    Io {
        /// The step.
        step: u64,
        /// The attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A rank does not find the folder that rank 0 has made for all.
    #[error(
        "checkpoint of step {step}: rank {rank} does not see {}, which rank 0 has made; all hosts must share the run's folder",
        path.display()
    )]
    NotShared {
        /// The step.
        step: u64,
        /// The rank.
        rank: usize,
        /// The folder.
        path: PathBuf,
    },
    /// Another rank could not write its part.
    #[error("rank {rank}: {problem}")]
    Elsewhere {
        /// The rank.
        rank: usize,
        /// The problem that it reports.
        problem: String,
    },
    /// A tensor has values that are infinite or NaN. Nothing is saved.
    #[error(
        "checkpoint of step {step} is not saved: {kind} `{name}` has {count} values that are not finite; resume from an earlier \
         checkpoint, with a smaller optim.lr or with train.clip_norm"
    )]
    NotFinite {
        /// The step.
        step: u64,
        /// The kind of the tensor.
        kind: String,
        /// The name of the tensor.
        name: String,
        /// The number of such values in this rank's part.
        count: usize,
    },
    /// A run has saved none.
    #[error("{} holds no checkpoint yet", folder.display())]
    None {
        /// The run's folder.
        folder: PathBuf,
    },
    /// A file differs from the index.
    #[error("checkpoint is damaged: {}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// A checkpoint is intact but belongs to another model.
    #[error("{}: does not fit this model: {problem}", path.display())]
    Unfit {
        /// The checkpoint's folder.
        path: PathBuf,
        /// The mismatch.
        problem: String,
    },
}

impl CheckpointError {
    /// Returns the error of an `action` that failed on `path`.
    pub(super) fn io(step: u64, action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { step, action, path, source }
    }

    pub(super) fn damaged(path: &Path, problem: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), problem: problem.into() }
    }
}
