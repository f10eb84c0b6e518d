//! Configuration, training loop, checkpoints, metrics and launching: the `phalanx` program as a library.
//!
//! The layers below know how to differentiate, communicate and read images. This crate decides what is trained,
//! on what, by how many ranks and for how long, and leaves a folder that tells what happened.
//!
//! - **[`config`]**: typed sections, composed from presets, files with `extends`, and `--set`. Every value knows
//!   where it was written, so every complaint names key, file and line.
//! - **[`launch`]**: starts ranks as processes on a leash, and tells the first failure that was a rank's own.
//! - **[`engine`]**: the training loop of one rank; a [`engine::Task`] is what it needs to know of a model.
//! - **[`run`]**: the run's folder: metrics, summary, sample grids, and checkpoints that are complete or absent.
//! - **[`parity`]**: whether this program computes what the reference implementations have recorded.
//! - **[`console`]** and **[`cli`]** are the program. Nothing else here prints.
//!
//! What it is not: it has no numeric code of its own, and knows nothing of how kernels or collectives work.
//!
//! # Example
//!
//! A whole training run in this process, silently:
//!
//! ```
//! use phalanx_trainer::config::resolve;
//! use phalanx_trainer::engine::{Silent, World, train};
//! use phalanx_trainer::launch::StopFlag;
//! use phalanx_trainer::run::{RunFolder, Summary};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let resolved = resolve("tiny", &["train.ranks=1".to_owned(), "train.steps=3".to_owned()])?;
//! resolved.validate()?;
//! let place = tempfile::tempdir()?;
//! let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), &resolved.name)?;
//! train(&folder, &resolved, &World::alone(), &StopFlag::default(), Box::new(Silent))?;
//!
//! let summary = Summary::read(&folder.summary())?;
//! assert_eq!((summary.status.as_str(), summary.step), ("finished", 3));
//! assert!(folder.samples().join("step-00000003.png").exists());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod console;
pub mod engine;
pub mod launch;
pub mod parity;
pub mod run;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
