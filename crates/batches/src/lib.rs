//! Batches of samples as tensors.
//!
//! A data set gives a batch as plain arrays ([`phalanx_data::Batch`]). A [`Batch`] here has the same arrays as tensors without a copy, with
//! texts and the weight of each sample. Images may come as bytes: they are prepared where they are used, on a GPU or on the host, and a
//! [`DeviceCache`] keeps those of a split on a device, so that later epochs send only their numbers.
//!
//! # Example
//!
//! ```
//! use phalanx_batches::Batch;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let rows = phalanx_data::Batch::new(2).with("x", [2, 3], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let batch = Batch::try_from(rows.with("labels", [2], vec![0_u32, 1])?)?;
//! assert_eq!(batch.tensor("x")?.dims(), [2, 3]);
//! assert_eq!(batch.classes("labels")?, [0, 1]);
//! assert_eq!(batch.first(1)?.len(), 1);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod error;

mod device_cache;

mod images_of_batch;

mod sample_hash;

mod batch;

pub use batch::{Batch, MixedLabels};
pub use device_cache::DeviceCache;
pub use error::BatchError;
pub use sample_hash::SampleHash;

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
