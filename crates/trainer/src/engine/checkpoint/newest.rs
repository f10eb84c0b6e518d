//! Chooses the checkpoint that a run resumes from, and the one that is used outside of the run.

use crate::engine::distributed::Distributed;
use crate::engine::error::TrainError;
use phalanx_checkpoint::{Checkpoint, newest_checkpoint};
use phalanx_run::RunFolder;

/// Finds the newest complete checkpoint, and the problems of newer ones. All ranks call this together.
pub(in crate::engine) fn find_checkpoint(
    distributed: &Distributed,
    folder: &RunFolder,
) -> Result<(Option<Checkpoint>, Vec<String>), TrainError> {
    let listed = Checkpoint::list(&folder.checkpoints());
    let found = listed.last().map_or(0, |(step, _)| *step);
    let steps: Vec<String> = listed.iter().map(|(step, _)| step.to_string()).collect();
    let own = steps.join(" ");
    if distributed.exchange().gather_text(&own)?.iter().any(|other| *other != own) {
        let folder = folder.path().display().to_string();
        return Err(TrainError::Disagree { rank: distributed.rank(), found, folder });
    }
    let mut damaged = Vec::new();
    for (_, path) in listed.into_iter().rev() {
        let opened = Checkpoint::open_share(&path, distributed.rank(), distributed.size());
        let own = opened.as_ref().err().map_or_else(String::new, ToString::to_string);
        let said = distributed.exchange().gather_text(&own)?;
        match (opened, said.into_iter().find(|problem| !problem.is_empty())) {
            (Ok(checkpoint), None) => return Ok((Some(checkpoint), damaged)),
            (_, problem) => damaged.extend(problem),
        }
    }
    Ok((None, damaged))
}

/// A checkpoint of a run, by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointChoice {
    /// The newest one.
    #[default]
    Newest,
    /// The best one, by `checkpoint.best`.
    Best,
}

impl CheckpointChoice {
    /// Opens the checkpoint, outside of the run.
    ///
    /// # Errors
    /// If there is none that can be read, or none is marked as the best.
    pub fn open(self, folder: &RunFolder) -> Result<Checkpoint, TrainError> {
        if self == Self::Newest {
            return Ok(newest_checkpoint(folder)?);
        }
        let none = || {
            let folder = folder.path().display();
            TrainError::Setup(format!(
                "{folder} has no best checkpoint; train with checkpoint.best, such as --set checkpoint.best=test_loss"
            ))
        };
        Ok(Checkpoint::best(&folder.checkpoints())?.ok_or_else(none)?.0)
    }
}
