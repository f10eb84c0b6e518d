//! Data for distributed training: from files, or from nothing, to batches of plain numbers on each rank.
//!
//! Training on many ranks asks more of a data pipeline than speed. A run must be repeatable from one seed, must
//! go on in the middle of an epoch as if it had never stopped, and must see the same samples in the same order
//! whether one rank works or eight. Here all of that follows from one rule: **nothing random is carried along.**
//! The order of an epoch, a crop, the wording of a caption are each a function of (seed, purpose, epoch, index),
//! so no number depends on a thread, a rank, or on what came before.
//!
//! - A [`Dataset`] gives items of any kind by index, read when they are asked for. Of captioned images,
//!   [`open_cifar10`] reads CIFAR-10 in any of its three forms, [`CubDataset`] CUB-200-2011, [`CocoCaptions`] MS-COCO's
//!   captions, [`open_imagenet`] ImageNet, [`ImageFolder`] class folders and [`ArchivesDataset`] tar shards;
//!   [`ShapesDataset`] and [`ScenesDataset`] make pictures by program, with combinations held out for testing and what they
//!   show as [attributes](Attribute). [`TextFile`] gives lines or windows of a text as tokens, and [`Subset`] a part of any
//!   other dataset.
//! - A [`Collate`] makes a [`Batch`] of items: named arrays and texts, with a weight for each sample.
//!   There are three, for [images with captions](ImageCollation), [sequences of different lengths](SequenceCollation),
//!   and [boxes with masks](DetectionCollation); one's own is a function.
//! - A [`Transform`] makes numbers of an image: resize, crop, flip, normalise.
//! - A [`DistributedSampler`] says which samples a rank takes at a step: a contiguous part of the *global*
//!   batch, with how many samples count.
//! - A [`Loader`] takes a [`BatchSource`], which is a dataset with its collation, makes the batches that its sampler says
//!   on worker threads, and delivers each [`StepBatch`] strictly in order. It knows arrays, and not what they mean.
//! - A [`ClipTokenizer`] makes tokens of captions, those that openai/CLIP makes.
//!
//! A loss is a weighted mean over the global batch: each sample's loss times its weight, divided by
//! [`StepBatch::global_weight`]. Weights are 1 unless a dataset [says otherwise](Dataset::weight), and 0 for samples that
//! only fill places. The sum is taken from indices alone, so every rank knows it without a word to the others.
//!
//! The crate has no tensors, no devices, and no communication: a batch is vectors of numbers with their shapes, and a
//! rank is two numbers in a configuration. It downloads nothing. It never repairs what is wrong with a file: a
//! damaged image, a short file, or a label that is no class is an error that names the file and the row. Files known to be
//! damaged can be [excluded](Exclusions).
//!
//! # Example
//!
//! Two ranks share batches of eight pictures of shapes (`examples/text_batches.rs` does so with lines of a text):
//!
//! ```
//! use std::sync::Arc;
//! use phalanx_data::{
//!     ClipTokenizer, Collated, DistributedSampler, Filter, ImageCollation, Loader, LoaderConfig, Order, SamplerConfig,
//!     ShapesConfig, ShapesDataset, Tail, Transform, TransformConfig,
//! };
//!
//! # fn main() -> phalanx_data::Result<()> {
//! let dataset = ShapesDataset::new(ShapesConfig { len: 100, resolution: 32, ..Default::default() })?;
//! let transform = Transform::new(TransformConfig::square(16, Filter::Bilinear))?;
//! let source = Arc::new(Collated::new(Arc::new(dataset), ImageCollation::new(transform)));
//! let sampler = |world_size, rank| {
//!     DistributedSampler::new(SamplerConfig {
//!         len: 100, world_size, rank, global_batch: 8, micro_batches: 1, seed: 1, order: Order::Shuffled, tail: Tail::Drop,
//!     })
//! };
//! let mut indices = Vec::new();
//! for rank in 0..2 {
//!     // From the third step of the first epoch on, as a resumed run would.
//!     let mut loader = Loader::new(source.clone(), sampler(2, rank)?, LoaderConfig::default(), (0, 2))?;
//!     let loaded = loader.next().expect("a loader does not end by itself")?;
//!     assert_eq!((loaded.step, loaded.global_samples, loaded.global_weight), (2, 8, 8.0));
//!     assert_eq!(loaded.micro_batches[0].positions, 4 * rank..4 * rank + 4);
//!     assert_eq!(loaded.batch.array("images")?.shape(), [4, 3, 16, 16]);
//!     let tokens = ClipTokenizer::new()?.encode(&loaded.batch.texts("captions")?[0], 77)?;
//!     assert_eq!(tokens[0], 49_406);
//!     indices.extend(loaded.indices);
//! }
//!
//! // One rank alone would have loaded these eight, in this order.
//! assert_eq!(sampler(1, 0)?.samples(0, 2)?.indices, indices);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

// What everything else speaks of.
pub mod error;
pub mod rng;

pub mod attribute;
pub mod dataset;

// Files of text and of images.
mod decode;
pub mod exclusions;
mod file_list;
mod lines;
mod strings;

// Images, and where they come from.
pub mod archives;
pub mod captioned_image;
pub mod captions;
pub mod cifar10;
pub mod coco;
pub mod cub;
mod encoded;
pub mod image_folder;
pub mod imagenet;

// Images made by program.
pub mod scenes;
pub mod shapes;

// What becomes of an image.
pub mod transform;

// Words, and where they come from.
pub mod text_file;
pub mod tokenizer;

pub mod subset;

// From samples to batches.
pub mod batch;
pub mod cached_images;

pub mod collate;
pub mod source;

// Which of them a rank takes, and when.
pub mod sampler;
pub mod step_batch;

pub mod loader;

pub use archives::{ArchivesConfig, ArchivesDataset};
pub use attribute::Attribute;
pub use batch::{ArrayData, Batch, BatchArray, ElementType, ImageBytes, ImageRecipe};
pub use cached_images::CachedImages;
pub use captioned_image::{CaptionedImage, ImageDataset};
pub use cifar10::{open_cifar10, open_cifar10_seeded};
pub use coco::{CocoCaptions, CocoConfig};
pub use collate::{
    Collate, DetectionCollation, DetectionConfig, DetectionImage, ImageCollation, ObjectAnnotation, PadTo,
    Samples, SequenceCollation, SequenceConfig,
};
pub use cub::{CubCaptions, CubConfig, CubDataset};
pub use dataset::{Dataset, Labelled, Split};
pub use decode::decode as decode_image;
pub use error::{DataError, Result};
pub use exclusions::Exclusions;
pub use image_folder::ImageFolder;
pub use imagenet::open_imagenet;
pub use loader::{Loader, LoaderConfig};
pub use sampler::{Chunks, DistributedSampler, MicroBatchRange, Order, RankSamples, SamplerConfig, Tail};
pub use scenes::{SceneSpec, ScenesConfig, ScenesDataset};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use source::{BatchSource, Collated, SourceSubset};
pub use step_batch::{StepBatch, StepHeader};
pub use subset::Subset;
pub use text_file::{TextFile, TextFileConfig, TextSample, TextUnit};
pub use tokenizer::ClipTokenizer;
pub use transform::{
    AreaCrop, Filter, Normalise, Placement, RandomCrop, Resize, ResizeMode, Transform, TransformConfig,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
