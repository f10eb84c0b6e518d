//! The data of a run, and the batches of a rank.

mod feed;
mod splits;
mod test_pictures;
mod user_files;

pub(super) use feed::{Feed, MicroBatch, StepSamples, StepShape, TestBatch};
pub(super) use splits::Data;
pub use user_files::UnreadableImage;
pub(super) use user_files::{FileBatch, UserFiles};
