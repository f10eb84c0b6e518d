//! The command line of Phalanx, for any list of tasks.
//!
//! - A [`Program`] is a name, tasks and presets.
//! - [`main`] parses the arguments of the process, runs one command of a program, and returns the exit code.
//! - [`console`] prints a run: a progress bar on a terminal, plain lines elsewhere.
//! - [`range_test`] suggests a learning rate by losses.
//! - [`sweep`] trains every combination of a sweep file or a study, and makes its tables.
//!
//! It composes the crates below and holds no training logic of its own. It is the only library crate that prints.
//!
//! ```no_run
//! # use phalanx_trainer::{Setup, TrainError, Training};
//! # fn build(_: &mut Setup<'_>, _: &()) -> Result<Training<()>, TrainError> { unimplemented!() }
//! use phalanx_cli::Program;
//! use phalanx_trainer::TaskSpec;
//!
//! fn main() -> std::process::ExitCode {
//!     let task = TaskSpec::new("points", "Learns where points lie", build);
//!     let short = "[train]\nsteps = 100\n";
//!     phalanx_cli::main(&Program::new("my-points").task(task).preset("short", short))
//! }
//! ```
#![forbid(unsafe_code)]

mod program;

pub mod console;

pub mod sweep;

pub mod range_test;

mod commands;

pub use commands::main;
pub use program::{Program, PublishedPictures, PublishedRequest, PublishedSampler};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
