//! Pipelines: each rank computes some layers of the model, its stage, and micro-batches follow each other through the stages.
//!
//! A schedule is data ([`PipelineSchedule`]): for each rank the passes that it runs, in order. [`PipelineSchedule::check`] plays it
//! before anything runs, and [`PipelineSchedule::play`] tells when each pass runs, at given seconds of passes and messages.

mod block_times;
mod check;
mod device_pairs;
mod division;
mod kinds;
mod links;
mod message;
mod order;
mod play;
mod run;
mod schedule;
mod shared_stages;
mod sharing;
mod stage_params;
mod staged_model;

pub use block_times::{BlockSeconds, TimedPasses, time_blocks};
pub use check::{ScheduleCheck, ScheduleLimits};
pub use device_pairs::DevicePairs;
pub use division::DividedPass;
pub use links::{PipelineOptions, StageTraffic};
pub use order::{BlockOrder, CutCosts};
pub use play::{PassSeconds, PlayCosts, PlayedWork, SentValue, Timeline};
pub use run::{PassTotal, Pipeline, StageForward, StagePasses};
pub use schedule::{PipelineSchedule, PipelineSizes, StagePass, StageWork};
pub use shared_stages::SharedStages;
pub use sharing::shared_blocks;
pub use stage_params::StageParams;
pub use staged_model::{BuiltModel, StageCut, StageLoss, StagedModel, StagedSetup};
