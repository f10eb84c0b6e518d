//! Distributed deep-learning training: the program `phalanx`, and one dependency for tasks of your own.
//!
//! This crate re-exports what a training needs from the crates below, and adds the tasks, presets and studies that ship with
//! the program.
//!
//! - [`Program`], [`main`]: tasks and presets under a name, and the command line of one.
//! - [`TaskSpec`], [`Setup`], [`Training`], [`StepInput`], [`settings!`]: what a task is written with.
//! - [`program()`]: the program `phalanx` itself, which uses the same API as a task of your own.
//! - [`diffusers`]: published weights in the layout of Hugging Face, and pictures made with them.
//! - [`engine`], [`config`], [`run`], [`checkpoint`], [`launch`], [`report`], [`trace`]: the crates below, by name.
//!
//! # A training of one's own
//!
//! Anything that can be said as networks and losses trains with the whole command line: on any number of ranks, by any
//! strategy, with checkpoints from which it goes on to the bit, evaluation, plans and a configuration that explains itself.
//! `phalanx` itself comes through this door. What it takes is a function that registers networks and names phases:
//!
//! ```no_run
//! use phalanx_tensor::{Value, loss, nn};
//! use phalanx::{Program, Setup, StepInput, TaskSpec, TrainError, Training, settings};
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
//!     fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
//!         let (output, target) = (self.0.forward(step.tape, &step.value("x")?)?, step.value("y")?);
//!         Ok(loss::mse(step.tape, &output, &target, step.over()?)?)
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     let task = TaskSpec::new("line", "Learns a line", Line::build);
//!     // `.data(…)` says where batches with arrays `x` and `y` come from.
//!     phalanx::main(&Program::new("lines").task(task))
//! }
//! ```
//!
//! With `#[global_allocator] static ALLOCATOR: phalanx::Allocator = phalanx::Allocator;` the program keeps the memory that a
//! step frees, as `phalanx` does: steps of language models are up to a tenth shorter.
//!
//! The examples `own_gan` (two networks that are updated in turn, each with its optimizer) and `own_language_model`
//! (sequences of different lengths) are whole programs.
//!
//! # A run in this process
//!
//! Training without the command line, silently:
//!
//! ```
//! use phalanx::engine::{NoopObserver, World, train};
//! use phalanx::run::StopFlag;
//! use phalanx::run::{RunFolder, Summary};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let program = phalanx::program();
//! let resolved = program.resolve("tiny", &["train.ranks=1".to_owned(), "train.steps=3".to_owned()])?;
//! resolved.validate()?;
//! let task = program.task_of(&resolved.config).expect("one of its own");
//! let place = tempfile::tempdir()?;
//! let folder = RunFolder::create(Some(&place.path().join("run")), place.path(), &resolved.name)?;
//! train(task, &folder, &resolved, &World::alone(), &StopFlag::default(), Box::new(NoopObserver))?;
//!
//! let summary = Summary::read(&folder.summary())?;
//! assert_eq!((summary.status.as_str(), summary.step), ("finished", 3));
//! assert!(folder.samples().join("step-00000003.png").exists());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod tasks;

mod studies;

pub mod diffusers;

mod builtin;

mod weighted_prompt;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing {
    //! Readers of files of tasks, for the fuzzer of this workspace.

    use std::path::Path;

    /// Reads the captions' vectors of a StackGAN file.
    pub fn embeddings(path: &Path) {
        crate::tasks::fuzzing::embeddings(path);
    }

    #[cfg(test)]
    mod tests {
        use phalanx_fuzz_harness::{Reader, check, files};

        #[test]
        fn embeddings_hold_their_limits() {
            let read = |bytes: &[u8]| {
                let place = files::folder();
                let path = place.path().join("vectors.safetensors");
                std::fs::write(&path, bytes).expect("writes");
                super::embeddings(&path);
            };
            check(Reader { name: "embeddings", read, memory: 48 << 20 }, Vec::new(), 200, |_, _| false);
        }
    }
}

pub use phalanx_allocator::Allocator;
pub use phalanx_checkpoint as checkpoint;
pub use phalanx_cli::{Program, console, main, sweep};
pub use phalanx_config as config;
pub use phalanx_config::settings;
pub use phalanx_datasets as datasets;
pub use phalanx_launch as launch;
pub use phalanx_quality as quality;
pub use phalanx_report as report;
pub use phalanx_run as run;
pub use phalanx_trace as trace;
pub use phalanx_trainer::{
    ClassScores, Classes, EvaluatorOutput, ForwardInput, ForwardOutput, Loss, OutputMeaning, ReferenceModel,
    Setup, StepInput, TaskSpec, TrainError, Training, engine, number,
};
pub use phalanx_usage as usage;
pub use phalanx_weights as weights;

pub use builtin::program;
pub use studies::STUDIES;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
