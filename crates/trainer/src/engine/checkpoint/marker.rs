//! The file `saved` of a run: the step of the newest checkpoint that was ever saved. It tells a run that lost its checkpoints from one that
//! never had any.

use phalanx_run::{Links, RunFolder, write_aside};

/// Records on rank 0 that the checkpoint of a step is complete.
pub(in crate::engine) fn mark_saved(folder: &RunFolder, step: u64) {
    let path = folder.saved();
    // The checkpoint is complete without it.
    if let Err(error) = write_aside(&path, format!("{step}\n").as_bytes()) {
        tracing::warn!("cannot write {}: {error}", path.display());
    }
}

/// Returns the step of the newest checkpoint that was ever saved; `None` if none was.
pub(in crate::engine) fn saved_step(folder: &RunFolder) -> Option<u64> {
    Links::Refuse.read_text(&folder.saved()).ok()?.trim().parse().ok()
}
