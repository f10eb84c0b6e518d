//! Checkpoints of a run: when they are written, what of them a rank writes, and which one a run goes on from.

mod codec_state;
mod newest;
mod parts;
mod saver;

pub(super) use codec_state::{codec_file, codec_state, is_codec_state, own_file, own_state};
pub(super) use newest::find_checkpoint;
pub use newest::newest_checkpoint;
pub(super) use parts::Cut;
pub(super) use saver::{Saved, Saver};
