//! Configuration, training loop, checkpoints, metrics and launching: the `phalanx` program as a library.
//!
//! The layers below know how to differentiate, communicate and read images. This crate decides what is trained,
//! on what, by how many ranks and for how long, and leaves a folder that tells what happened.
//!
//! - **[`config`]**: typed sections, composed from presets, files with `extends`, and `--set`. Every value knows
//!   where it was written, so every complaint names key, file and line. A task has settings of its own in `[model]`.
//! - **[`run`]**: the run's folder: metrics, summary, sample grids, and checkpoints that are complete or absent.
//! - **[`launch`]**: starts ranks as processes on a leash, and tells the first failure that was a rank's own.
//! - **[`engine`]**: the training loop of one rank; an [`engine::Training`] is networks that are learnt, and a step of
//!   phases that make losses and say which networks they update.
//! - **`tasks`**: the trainings that come with the program, a file for a family and a row for each.
//! - **[`Program`]**: tasks and presets under a name; [`main`] makes a command line of one.
//! - **[`diffusers`]**: published weights in Hugging Face's layout, and pictures drawn with them.
//! - **[`dashboard`]**: a run on a terminal, while it goes on, and what users ask it for.
//! - **[`report`]**: a page that tells what runs trained, what came of it and what it cost.
//! - **[`live`]**: the same pages from a server of this machine, while runs go on.
//! - **[`console`]** and `cli` are the command line. Nothing else here prints.
//!
//! What it is not: it has no numeric code of its own, and knows nothing of how kernels or collectives work.
//!
//! # A training of one's own
//!
//! Anything that can be said as networks and losses trains with the whole command line: on any number of ranks, by any
//! strategy, with checkpoints from which it goes on to the bit, evaluation, plans and a configuration that explains itself.
//! `phalanx` itself comes through this door. What it takes is a function that registers networks and names phases:
//!
//! ```no_run
//! use phalanx_tensor::{Value, loss, nn};
//! use phalanx_trainer::{Program, Setup, Step, TaskSpec, TrainError, Training, settings};
//!
//! settings! {
//!     /// The network.
//!     struct LineSettings {
//!         /// Numbers that the line goes through.
//!         inputs: usize = 3;
//!     }
//! }
//!
//! struct Line(nn::Linear);
//!
//! impl Line {
//!     fn build(setup: &mut Setup<'_>, settings: &LineSettings) -> Result<Training<Self>, TrainError> {
//!         let line = setup.model(|scope| nn::Linear::new(&scope.pp("line"), settings.inputs, 1))?;
//!         Ok(Training::new("a line", Self(line)).loss(Self::loss))
//!     }
//!
//!     fn loss(&self, step: &Step<'_>) -> Result<Value, TrainError> {
//!         let (output, target) = (self.0.forward(step.tape, &step.value("x")?)?, step.value("y")?);
//!         Ok(loss::mse(step.tape, &output, &target, step.over()?)?)
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let task = TaskSpec::new("line", "Learns a line", Line::build);
//!     // `.data(…)` says where batches with arrays `x` and `y` come from.
//!     phalanx_trainer::main(&Program::new("lines").task(task))
//! }
//! ```
//!
//! The examples `own_gan` (two networks that are updated in turn, each with its optimizer) and `own_language_model`
//! (sequences of different lengths) are whole programs.
//!
//! # A run in this process
//!
//! Training without the command line, silently:
//!
//! ```
//! use phalanx_trainer::Program;
//! use phalanx_trainer::engine::{Silent, World, train};
//! use phalanx_trainer::launch::StopFlag;
//! use phalanx_trainer::run::{RunFolder, Summary};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let phalanx = Program::phalanx();
//! let resolved = phalanx.resolve("tiny", &["train.ranks=1".to_owned(), "train.steps=3".to_owned()])?;
//! resolved.validate()?;
//! let task = phalanx.task_of(&resolved.config).expect("one of its own");
//! let place = tempfile::tempdir()?;
//! let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), &resolved.name)?;
//! train(task, &folder, &resolved, &World::alone(), &StopFlag::default(), Box::new(Silent))?;
//!
//! let summary = Summary::read(&folder.summary())?;
//! assert_eq!((summary.status.as_str(), summary.step), ("finished", 3));
//! assert!(folder.samples().join("step-00000003.png").exists());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod trace;

pub mod config;
pub mod run;

pub mod usage;

pub mod launch;

pub mod engine;
mod tasks;

mod program;

pub mod diffusers;

pub mod console;
pub mod sweep;

pub mod dashboard;

pub mod cluster;

pub mod checkup;

pub mod diagnose;

pub mod report;

pub mod live;

mod cli;

#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;

pub use cli::main;
pub use engine::{Judgement, Loss, Setup, Step, TaskSpec, TrainError, Training, number};
pub use program::Program;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
