//! Inference: evaluation, samples, and memory plans.

mod class_files;
mod evaluate;
mod memory;
mod runs;
mod samples;
mod tally;

pub use memory::{ModelPlan, plan_memory};
pub use runs::{RunEvaluation, describe, evaluate_run, evaluate_weights, sample_run};

pub(super) use class_files::{class_report, write_class_files};
pub(super) use evaluate::{TestPass, evaluate};
pub(super) use samples::{draw, draw_restored};
