//! The resources of a run over time, rank by rank: CPUs, memory by kind, network, disks, page faults, energy.
//!
//! A [`Sampler`] reads about once a second, on a thread of its own, and appends a line ([`phalanx_run::UsageLine`]) to the rank's
//! file in `logs/`. The system gives its part ([`ProcessUsage`], [`Powercap`]); the training gives the rest at a step's
//! end, by a [`Progress`]. Unknown numbers are left out, and energy has a source.
//!
//! # Example
//!
//! ```
//! use phalanx_usage::ProcessUsage;
//!
//! // What this process has used: all of it where the system has `/proc`, and less elsewhere.
//! let used = ProcessUsage::now();
//! println!("{used:?}");
//! ```
#![forbid(unsafe_code)]

mod energy;
mod powercap;
mod process;
mod progress;
mod sampler;

pub use energy::{CpuEnergy, RankEnergy, together};
pub use powercap::{FOLDER_VARIABLE, Powercap, PowercapError};
pub use process::ProcessUsage;
pub use progress::{Progress, ProgressCounters, StateBytes};
pub use sampler::{GpuReading, ResourceUse, SampledRank, Sampler};

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
