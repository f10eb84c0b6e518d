//! The training loop: what one rank of a training does.
//!
//! The layers below know how to differentiate, communicate and read data, and `phalanx-config` has the settings of a run. This crate
//! opens the data, connects the ranks, builds the networks, and runs the steps.
//!
//! - [`engine`]: the training loop of one rank; an [`engine::Training`] is the networks that are trained, and a step of phases
//!   that compute losses and name the networks that they update.
//!
//! It prints nothing, starts no process, and knows no task by name. The crate `phalanx-cli` makes a command line of it, and
//! `phalanx` adds the tasks that ship with the program.
//!
//! # Example
//!
//! A task is a function that registers networks and names phases:
//!
//! ```
//! use phalanx_tensor::{Value, loss, nn};
//! use phalanx_config::settings;
//! use phalanx_trainer::{Setup, StepInput, TaskSpec, TrainError, Training};
//!
//! settings! {
//!     /// The network.
//!     struct LineSettings {
//!         /// Inputs of the line.
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
//!     fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
//!         let (output, target) = (self.0.forward(step.tape, &step.value("x")?)?, step.value("y")?);
//!         Ok(loss::mse(step.tape, &output, &target, step.over()?)?)
//!     }
//! }
//!
//! let task = TaskSpec::new("line", "Learns a line", Line::build);
//! # let _ = task;
//! ```
#![forbid(unsafe_code)]

pub mod engine;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;

pub use engine::{
    ClassScores, Classes, EvaluatorOutput, ForwardInput, ForwardOutput, Loss, OutputMeaning, ReferenceModel,
    Setup, StepInput, TaskSpec, TrainError, Training, number,
};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
