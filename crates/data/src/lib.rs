//! Data for distributed training: from files, or from nothing, to batches of plain numbers on each rank.
//!
//! Training on many ranks asks more of a data pipeline than speed. A run must be repeatable from one seed, must
//! go on in the middle of an epoch as if it had never stopped, and must see the same samples in the same order
//! whether one rank works or eight. Here all of that follows from one rule: **nothing random is carried along.**
//! The order of an epoch, a crop, the wording of a caption are each a function of (seed, purpose, epoch, index),
//! so no number depends on a thread, a rank, or on what came before.
//!
//! - A [`Dataset`] gives a [`Sample`] (image, label, caption) by index, decoded when it is asked for:
//!   [`open_cifar10`] reads CIFAR-10 in any of its three forms, [`ImageFolder`] class folders,
//!   [`ShapesDataset`] makes captioned pictures by program, with combinations held out for testing, and
//!   [`Subset`] takes a part of another.
//! - A [`DistributedSampler`] says which samples a rank takes at a step: a contiguous part of the *global*
//!   batch, with how many samples count.
//! - A [`Transform`] makes numbers of an image: resize, crop, flip, normalise.
//! - A [`Loader`] joins the three on worker threads and delivers each [`Batch`] strictly in order.
//! - A [`ClipTokenizer`] makes tokens of captions, the same ones as openai/CLIP's.
//!
//! The crate has no tensors, no devices, and no communication: a batch is a `Vec<f32>` with its shape, and a
//! rank is two numbers in a configuration. It downloads nothing. It never repairs what is wrong with a file: a
//! damaged image, a short file, or a label that is no class is an error that names the file and the row.
//!
//! # Example
//!
//! Two ranks share batches of eight pictures of shapes:
//!
//! ```
//! use std::sync::Arc;
//! use phalanx_data::{
//!     ClipTokenizer, DistributedSampler, Filter, Loader, LoaderConfig, SamplerConfig, ShapesConfig, ShapesDataset,
//!     Tail, Transform, TransformConfig,
//! };
//!
//! # fn main() -> phalanx_data::Result<()> {
//! let dataset = Arc::new(ShapesDataset::new(ShapesConfig { len: 100, resolution: 32, ..Default::default() })?);
//! let mut indices = Vec::new();
//! for rank in 0..2 {
//!     let sampler = DistributedSampler::new(SamplerConfig {
//!         len: 100, world_size: 2, rank, global_batch: 8, pieces: 1, seed: 1, shuffle: true, tail: Tail::Drop,
//!     })?;
//!     let transform = Transform::new(TransformConfig::square(16, Filter::Bilinear))?;
//!     // From the third step of the first epoch on, as a resumed run would.
//!     let mut loader = Loader::new(dataset.clone(), transform, sampler, LoaderConfig::default(), (0, 2))?;
//!     let batch = loader.next().expect("a loader does not end by itself")?;
//!     assert_eq!(batch.shape, [4, 3, 16, 16]);
//!     assert_eq!((batch.step, batch.global_valid), (2, 8));
//!     assert_eq!(batch.pieces[0].positions, 4 * rank..4 * rank + 4);
//!     let tokens = ClipTokenizer::new()?.encode(&batch.captions[0], 77)?;
//!     assert_eq!(tokens[0], 49_406);
//!     indices.extend(batch.indices);
//! }
//!
//! // One rank alone would have loaded the same eight, in this order.
//! let alone = DistributedSampler::new(SamplerConfig {
//!     len: 100, world_size: 1, rank: 0, global_batch: 8, pieces: 1, seed: 1, shuffle: true, tail: Tail::Drop,
//! })?;
//! assert_eq!(alone.share(0, 2)?.indices, indices);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

// What everything else speaks of.
pub mod dataset;
pub mod error;
pub mod rng;

// Where samples come from.
pub mod captions;
pub mod cifar10;
mod encoded;
pub mod image_folder;
pub mod shapes;
pub mod subset;

// What becomes of them.
pub mod sampler;
pub mod transform;

pub mod batch;
pub mod loader;

// Words.
pub mod tokenizer;

pub use batch::Batch;
pub use cifar10::{open_cifar10, open_cifar10_seeded};
pub use dataset::{Dataset, Sample, Split};
pub use error::{DataError, Result};
pub use image_folder::ImageFolder;
pub use loader::{Loader, LoaderConfig};
pub use sampler::{DistributedSampler, Piece, SamplerConfig, Share, Tail};
pub use shapes::{Objects, ShapeSpec, ShapesConfig, ShapesDataset, heldout_prompts, render};
pub use subset::Subset;
pub use tokenizer::ClipTokenizer;
pub use transform::{Filter, Normalise, RandomCrop, Resize, ResizeMode, Transform, TransformConfig};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
