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
mod user_files;
mod write;

pub use batch::{Batch, MixedLabels};
pub use check::{DamagedImage, DataCheck, SplitCheck, check_data};
pub(super) use feed::{Feed, MicroBatch, StepSamples, StepShape, TestBatch};
pub(super) use open::{OpenedSplits, attributes, class_names, num_classes};
pub(super) use record::DataRecord;
pub(super) use splits::Data;
pub(super) use transforms::{Preparation, picture_transform};
pub use user_files::UnreadableImage;
pub(super) use user_files::{FileBatch, UserFiles};
pub use write::{WrittenSplit, write_images};
