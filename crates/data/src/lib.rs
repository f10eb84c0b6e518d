//! Data for distributed training: from files or synthetic images to batches of plain numbers on each rank.
//!
//! A data pipeline for many ranks needs more than speed. A run must be repeatable from one seed, resume in the middle of
//! an epoch, and see the same samples in the same order on one rank or eight. All of this follows from one rule:
//! **no random state is carried along.** The order of an epoch, a crop and the wording of a caption are functions of
//! (seed, purpose, epoch, index), so they depend on no thread, no rank and no earlier sample.
//!
//! - A [`Dataset`] returns items of any type by index. [`open_cifar10`] reads CIFAR-10 in any of its three forms,
//!   [`CubDataset`] CUB-200-2011, [`CocoCaptions`] MS-COCO captions, [`open_imagenet`] ImageNet, [`ImageFolder`] class
//!   folders, and [`ArchivesDataset`] tar archives. [`ShapesDataset`] and [`ScenesDataset`] render synthetic images,
//!   with combinations held out for testing and their content as [attributes](Attribute). [`SentencesDataset`]
//!   generates sentences of known entropy. [`Subset`] selects samples of another dataset.
//! - A [`Collate`] makes a [`Batch`] of items: named arrays and texts, with a weight for each sample. There are three,
//!   for [captioned images](ImageCollation), [sequences of different lengths](SequenceCollation), and
//!   [boxes with masks](DetectionCollation). A function is a collation, too.
//! - A [`Transform`] converts an image to numbers: resize, crop, flip, augment, normalise, erase.
//! - A [`DistributedSampler`] assigns samples to ranks: a contiguous part of the *global* batch at each step.
//! - A [`Loader`] makes the batches of a [`BatchSource`], a dataset with its collation, on worker threads. It delivers
//!   each [`StepBatch`] strictly in order.
//! - A [`ClipTokenizer`] converts captions to the tokens of openai/CLIP.
//!
//! A loss is a weighted mean over the global batch: the sum of each sample's loss times its weight, divided by
//! [`StepBatch::global_weight`]. Weights are 1 unless a dataset [defines others](Dataset::weight), and 0 for padding.
//! The sum depends on indices alone, so every rank computes it without communication.
//!
//! The crate has no tensors, no devices and no communication: a batch is vectors of numbers with shapes, and a rank is
//! two numbers in a configuration. It downloads nothing. It never repairs a file: a damaged image, a short file and a
//! label out of range are errors that name the file and the row. Known damaged files can be [excluded](Exclusions),
//! and by choice other samples take the place of damaged ones ([`damage`]).
//!
//! # Example
//!
//! Two ranks share batches of eight images of shapes:
//!
//! ```
//! use std::sync::Arc;
//! use phalanx_data::{
//!     ClipTokenizer, CollatedDataset, DistributedSampler, Filter, ImageCollation, Loader, LoaderConfig, Order,
//!     SamplerConfig, ShapesConfig, ShapesDataset, Tail, Transform, TransformConfig,
//! };
//!
//! # fn main() -> phalanx_data::Result<()> {
//! let dataset = ShapesDataset::new(ShapesConfig { len: 100, resolution: 32, ..Default::default() })?;
//! let transform = Transform::new(TransformConfig::square(16, Filter::Bilinear))?;
//! let source = Arc::new(CollatedDataset::new(Arc::new(dataset), ImageCollation::new(transform)));
//! let sampler = |world_size, rank| {
//!     DistributedSampler::new(SamplerConfig {
//!         len: 100, world_size, rank, global_batch: 8, micro_batches: 1, seed: 1, order: Order::Shuffled, tail: Tail::Drop,
//!     })
//! };
//! let mut indices = Vec::new();
//! for rank in 0..2 {
//!     // Start at the third step of the first epoch, as a resumed run would.
//!     let mut loader = Loader::new(source.clone(), sampler(2, rank)?, LoaderConfig::default(), (0, 2))?;
//!     let loaded = loader.next().expect("a loader is endless")?;
//!     assert_eq!((loaded.step, loaded.global_samples, loaded.global_weight), (2, 8, 8.0));
//!     assert_eq!(loaded.micro_batches[0].positions, 4 * rank..4 * rank + 4);
//!     assert_eq!(loaded.batch.array("images")?.shape(), [4, 3, 16, 16]);
//!     let tokens = ClipTokenizer::new()?.encode(&loaded.batch.texts("captions")?[0], 77)?;
//!     assert_eq!(tokens[0], 49_406);
//!     indices.extend(loaded.indices);
//! }
//!
//! // A single rank would have loaded these eight samples in this order.
//! assert_eq!(sampler(1, 0)?.samples(0, 2)?.indices, indices);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

// Foundations.
pub mod error;
mod regular_file;
pub mod rng;

pub mod attribute;
pub mod dataset;

mod choices;

// Files of text and of images.
mod decode;
pub mod encoding;
pub mod exclusions;
mod file_list;
mod folder_listing;
mod hash;
mod lines;
mod numbered_files;
mod strings;

// Image datasets in files.
pub mod archives;
pub mod captioned_image;
pub mod captions;
pub mod cifar10;
pub mod coco;
pub mod cub;
mod encoded;
mod image_catalog;
pub mod image_files;
pub mod image_folder;
pub mod imagenet;
mod parquet;

// Synthetic image datasets.
pub mod scenes;
pub mod shapes;

// Images to numbers.
pub mod transform;

// Text and tokens.
pub mod sentences;
pub mod tokenizer;

pub mod subset;

pub mod fingerprint;
pub mod held_out;

// From samples to batches.
pub mod mix;

pub mod batch;
pub mod cached_images;

pub mod collate;
pub mod damage;
pub mod source;

// Batches of ranks and steps.
pub mod sampler;
pub mod step_batch;

pub mod loader;

pub use archives::{ArchivesConfig, ArchivesDataset};
pub use attribute::Attribute;
pub use batch::{ArrayData, Batch, BatchArray, ElementType, ImageBytes, ImageMix, ImageRecipe};
pub use cached_images::CachedImages;
pub use captioned_image::{CaptionedImage, ImageDataset};
pub use cifar10::{open_cifar10, open_cifar10_seeded};
pub use coco::{CocoCaptions, CocoConfig};
pub use collate::{
    Collate, DetectionCollation, DetectionConfig, DetectionImage, ImageCollation, ObjectAnnotation, PadTo,
    Samples, SequenceCollation, SequenceConfig,
};
pub use cub::{CubCaptions, CubConfig, CubDataset};
pub use damage::DamagedSamples;
pub use dataset::{Dataset, LabelledDataset, Split};
pub use decode::decode as decode_image;
pub use error::{DataError, Result};
pub use exclusions::Exclusions;
pub use fingerprint::Fingerprint;
pub use held_out::HeldOut;
pub use image_files::ImageFiles;
pub use image_folder::ImageFolder;
pub use imagenet::open_imagenet;
pub use loader::{Loader, LoaderConfig};
pub use mix::{Mixing, Mixture};
pub use parquet::{LabelledColumns, LabelledRows, read_parquet_labelled, read_parquet_texts};
pub use regular_file::Links;
pub use sampler::{
    Chunks, DistributedSampler, MicroBatchRange, Order, RankSamples, SampleLengths, SamplerConfig, Tail,
};
pub use scenes::{SceneSpec, ScenesConfig, ScenesDataset};
pub use sentences::{
    JudgedSentence, JudgedSentences, PairedSentences, SentencePair, SentencesConfig, SentencesDataset,
};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use source::{BatchSource, CollatedDataset, SourceSubset};
pub use step_batch::{StepBatch, StepHeader};
pub use subset::Subset;
pub use tokenizer::ClipTokenizer;
pub use transform::{
    AreaCrop, AugmentOp, ColorJitter, Filter, Interpolation, Normalise, Placement, RandAugment, RandomCrop,
    RandomErasing, Resize, ResizeMode, Transform, TransformConfig,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
