//! A training: networks, and the phases of a step.
//!
//! A function registers networks in a [`Setup`] and returns a [`Training`]: one or more *phases*, each of which computes a loss on the
//! batch and names the networks that it updates. The other networks are constants in it. A classifier has one phase; a generative
//! adversarial network has two; diffusion on a frozen autoencoder has one, and a network that is not trained
//! ([`Setup::frozen_network`]).
//!
//! Each trained network has its own optimizer, schedule, averages, clipping and loss scale, by `[optim]`, `[schedule]` and `[train]`.

mod any_training;
mod caption_reader;
mod checks;
mod classes;
mod drawing;
mod evaluator;
mod forward;
mod measure;
mod notices;
mod phase;
mod reference;
mod rule_use;
mod setup;
mod spec;
mod step;
mod text_input;
mod writing;

pub use caption_reader::{CaptionFeatures, CaptionReader, CaptionWord, TokenAttention};
pub use classes::{ClassScores, Classes};
pub(super) use drawing::planar;
pub use drawing::{Drawing, DrawingKind};
pub use evaluator::EvaluatorOutput;
pub use forward::{ForwardInput, ForwardOutput, OutputMeaning};
pub use measure::{Measure, number};
pub use phase::Training;
pub use reference::ReferenceModel;
pub use setup::Setup;
pub use spec::{Evaluator, FirstRun, KeptFile, Task, TaskSpec, TextLength, TransformersModels};
pub use step::{Loss, StepInput};
pub use text_input::TextInput;
pub use writing::{TokenChoice, Writing, WrittenPart, WrittenText, WrittenTexts};

pub(super) use any_training::{AnyTraining, ImageSource};
pub(super) use classes::{CLASS_SUMS, Evaluated, ScoredSample};
pub(super) use forward::ForwardPass;
pub(super) use notices::Notices;
pub(super) use phase::{Phase, TrainingOutline};
pub(super) use setup::{BuildTarget, Built, StageTarget, Weights, learnt_stores};
