//! The images that a configuration names.
//!
//! `phalanx-data` reads data sets of many forms, and `phalanx-config` has the keys of `[data]`. This crate joins them: it opens the splits
//! that `data.kind` and `data.path` name ([`OpenedSplits`]), chooses images of them, and prepares them for training and for testing
//! ([`ConfiguredImages`]). It checks that a label means one class everywhere, reads every image once to find damaged ones ([`check_data`]),
//! writes images as class folders ([`write_images`]), and records what a run was trained on ([`DataRecord`]).
//!
//! # Example
//!
//! ```
//! use phalanx_config::{Config, DataKind};
//! use phalanx_datasets::{ConfiguredImages, attributes};
//!
//! let mut config = Config::default();
//! (config.data.kind, config.data.images) = (DataKind::Shapes, 100);
//! (config.model.image_size, config.data.test_images) = (32, 20);
//!
//! let images = ConfiguredImages::open(&config)?;
//! assert_eq!(images.train().len(), 100);
//! let batch = images.train().batch(&[0, 1, 2], 0, &|| true)?;
//! assert_eq!(batch.values::<f32>("images")?.len(), 3 * 3 * 32 * 32);
//! assert_eq!(attributes(&config)?[0].name, "shape");
//! # Ok::<(), phalanx_datasets::DatasetError>(())
//! ```
#![forbid(unsafe_code)]

mod error;
mod transforms;

mod open;

mod images;

mod check;
mod record;
mod write;

pub use check::{DamagedImage, DataCheck, SplitCheck, check_data};
pub use error::DatasetError;
pub use images::{ConfiguredImages, SplitDamage};
pub use open::{Images, OpenedSplits, attributes, class_names, num_classes};
pub use record::DataRecord;
pub use transforms::{ImageTransforms, Preparation, mixing, picture_transform};
pub use write::{WrittenSplit, write_images};

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
