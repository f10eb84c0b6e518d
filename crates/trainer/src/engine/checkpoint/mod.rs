//! Checkpoints of a run: how they are written, the part of each rank, and the one that a run resumes from.

mod codec_state;
mod marker;
mod newest;
mod parts;
mod saver;

pub(super) use codec_state::{codec_file, codec_state, is_codec_state, own_file, own_state};
pub(super) use marker::{mark_saved, saved_step};
pub use newest::CheckpointChoice;
pub(super) use newest::find_checkpoint;
pub(super) use parts::CheckpointParts;
pub(super) use saver::{Saved, Saver};
