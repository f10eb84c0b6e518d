//! The checkpoints that are kept: the newest ones, and the best one by a measure of the evaluations.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use phalanx_run::{BestEvaluation, Links, write_aside};

use super::index::INDEX;
use super::{Checkpoint, CheckpointError, list, name};

/// The file that names the best checkpoint.
const BEST: &str = "best.json";

/// The rule for old checkpoints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Retention {
    /// The number of newest checkpoints that are kept.
    pub keep: usize,
    /// The best evaluation so far. Its checkpoint is kept in addition.
    pub best: Option<BestEvaluation>,
}

impl From<usize> for Retention {
    fn from(keep: usize) -> Self {
        Self { keep, best: None }
    }
}

impl Retention {
    /// Marks the best checkpoint if it is complete, then removes all but the newest ones up to the one of `step`, and the best one. Later
    /// ones do not count: the run did not resume from them, so they are damaged. A failed removal is repeated after the next checkpoint.
    /// Only rank 0 calls this.
    ///
    /// # Errors
    /// If the mark cannot be written. Nothing is removed then.
    pub fn apply(&self, checkpoints: &Path, step: u64) -> Result<(), CheckpointError> {
        let best = self.mark(checkpoints)?;
        let mut found = list(checkpoints);
        found.retain(|(other, _)| *other <= step);
        let old = &found[..found.len().saturating_sub(self.keep.max(1))];
        for (step, path) in old.iter().filter(|(step, _)| Some(*step) != best) {
            // Renamed first, so that a half-removed folder does not count as a checkpoint.
            let old = checkpoints.join(format!(".old-{}", name(*step)));
            if fs::rename(path, &old).is_ok() {
                let _ = fs::remove_dir_all(old);
            }
        }
        Ok(())
    }

    /// Writes the mark if it has changed and its checkpoint is complete. Returns the step of the marked checkpoint.
    fn mark(&self, checkpoints: &Path) -> Result<Option<u64>, CheckpointError> {
        let marked = read(checkpoints).ok();
        let has_checkpoint = |best: &&BestEvaluation| checkpoints.join(name(best.step)).join(INDEX).is_file();
        // Without its checkpoint, the one before remains the best that there is.
        let Some(best) = self.best.as_ref().filter(has_checkpoint) else {
            return Ok(marked.map(|best| best.step));
        };
        if marked.as_ref() != Some(best) {
            let path = checkpoints.join(BEST);
            let io = CheckpointError::io(best.step, "write", &path);
            let text = serde_json::to_string_pretty(best).map_err(io::Error::from);
            text.and_then(|text| write_aside(&path, format!("{text}\n").as_bytes())).map_err(io)?;
        }
        Ok(Some(best.step))
    }
}

/// Reads the mark.
fn read(checkpoints: &Path) -> io::Result<BestEvaluation> {
    Ok(serde_json::from_slice(&Links::Refuse.read(&checkpoints.join(BEST))?)?)
}

impl Checkpoint {
    /// Opens the best checkpoint in `checkpoints`. Returns it with the evaluation that made it the best; `None` if none is marked.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if the mark or the checkpoint is damaged.
    pub fn best(checkpoints: &Path) -> Result<Option<(Self, BestEvaluation)>, CheckpointError> {
        let path: PathBuf = checkpoints.join(BEST);
        let best = match read(checkpoints) {
            Ok(best) => best,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(CheckpointError::damaged(&path, error.to_string())),
        };
        Ok(Some((Self::open(&checkpoints.join(name(best.step)))?, best)))
    }
}
