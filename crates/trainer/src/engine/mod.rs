//! Training itself: one rank's loop, and what it is made of.
//!
//! | folder | holds |
//! |---|---|
//! | `distributed` | the other ranks, as the loop sees them |
//! | `data` | the batches of a rank |
//! | `training` | what a training is: networks, and a step of phases |
//! | `checkpoint` | when checkpoints are written, and what of them a rank writes |
//! | `inference` | evaluation, samples and plans, of a run or without one |
//! | `generative_metrics` | metrics of generated images |
//! | `train_loop` | the steps, and everything that changes in them |
//!
//! [`train`] runs a whole rank. It asks a [`Training`] for losses, the strategies of its networks for gradients summed over
//! the ranks, and `TrainState` to change and save what is learnt, and tells an [`Observer`] how it goes. A step's collectives
//! carry nothing else: losses go to rank 0, which writes them down, over the control plane, and so does word of what was
//! saved. Before every step, and before what follows it, a rank asks there whether it may go on, so all stop at the same
//! point, whether a user wants it, a disk is full, or a loss is broken.
//!
//! A run goes on from its newest checkpoint bit for bit: parameters, buffers, optimizer and averages come from
//! files; random numbers and the order of images are functions of seed, epoch and step.

mod error;
mod observer;
mod plan;

mod device;
mod distributed;
mod gauge;
mod optimize;
mod peak;
mod precision;
mod refusal;

mod data;
mod graphs;

mod training;

mod checkpoint;
mod estimate;
mod first_step;
mod generative_metrics;
mod inference;
mod stages;
mod step_outline;
mod watch;

mod train_loop;

pub use checkpoint::CheckpointChoice;
pub use data::UnreadableImage;
pub use distributed::{World, in_one_process, invited_world, launcher_world, require_secret};
pub use error::{Divergence, TrainError};
pub use estimate::{Estimate, estimate};
pub use generative_metrics::ConfusedValues;
pub use inference::{
    ClassAnswer, DrawnPictures, ExplainOptions, Explanation, GridStyle, ImageMetadata, METADATA_KEY,
    ModelMetadata, ModelPlan, OnnxExport, Picture, PredictOptions, PredictOutcome, Prediction, ReadPicture,
    RunEvaluation, SampleReport, TrainedModel, TrainedWeights, WordMap, describe, draw_pictures,
    evaluate_model, explain_model, export_onnx, model_adapters, plan_memory, predict, predict_texts,
    sample_model, write_texts,
};
pub use observer::{
    Event, NoopObserver, Observer, PhaseReport, ScaledRate, Started, StartedRanks, StepRange, StepReport,
    UpdateReport, named,
};
pub use phalanx_batches::{Batch, MixedLabels};
pub use phalanx_run::TextUse;
pub use plan::Plan;
pub use refusal::refusal;
pub use stages::{MeasuredBlock, MeasuredStages, measure_stages};
pub use step_outline::{RankOutline, StepOutline, outline_step};
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub use train_loop::Resumable;
pub use train_loop::{ReplicaFailure, RunEnd, has_diverged, rehearse, train, train_replicas};
pub use training::{
    CaptionFeatures, CaptionReader, CaptionWord, ClassScores, Classes, Drawing, DrawingKind, Evaluator,
    EvaluatorOutput, FirstRun, ForwardInput, ForwardOutput, KeptFile, Loss, Measure, OutputMeaning,
    ReferenceModel, Setup, StepInput, Task, TaskSpec, TextInput, TextLength, TokenAttention, TokenChoice,
    Training, TransformersModels, Writing, WrittenPart, WrittenText, WrittenTexts, number,
};
