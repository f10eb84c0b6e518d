//! The data of a run: which datasets, prepared how, and the batches that a rank gets of them.

mod batch;
mod feed;
mod splits;

pub use batch::Batch;
pub(super) use feed::{Feed, MicroBatch};
pub(super) use splits::{Data, num_classes};
