//! The data of a run: which datasets, prepared how, and the batches that a rank gets of them.

mod batch;
mod feed;
mod images;
mod splits;

pub use batch::Batch;
pub(super) use feed::{Feed, MicroBatch, StepSamples, TestBatch};
pub(super) use images::{attributes, num_classes, test_transform};
pub(super) use splits::Data;
