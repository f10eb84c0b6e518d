//! The newest checkpoint of a run.

use phalanx_run::RunFolder;

use crate::{Checkpoint, CheckpointError};

/// Opens the newest complete checkpoint of a run, outside of the run.
///
/// # Errors
/// If there is none, or none that can be read.
pub fn newest_checkpoint(folder: &RunFolder) -> Result<Checkpoint, CheckpointError> {
    let (newest, mut damaged) = Checkpoint::newest(&folder.checkpoints());
    let none = || CheckpointError::None { folder: folder.path().to_owned() };
    newest.ok_or_else(|| damaged.pop().unwrap_or_else(none))
}
