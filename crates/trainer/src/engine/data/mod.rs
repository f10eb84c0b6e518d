//! The data of a run: datasets, their preparation, and the batches of a rank.

mod device_cache;

mod images_of_batch;

mod batch;
mod check;
mod feed;
mod images;
mod open;
mod record;
mod splits;
mod test_pictures;
mod transforms;

pub use batch::Batch;
pub use check::{DamagedImage, DataCheck, SplitCheck, check_data};
pub(super) use feed::{Feed, MicroBatch, StepSamples, StepShape, TestBatch};
pub(super) use open::{attributes, num_classes};
pub(super) use record::DataRecord;
pub(super) use splits::Data;
pub(super) use transforms::picture_transform;
