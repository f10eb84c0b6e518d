//! Inference: evaluation, samples, and memory plans.

mod evaluate;
mod memory;
mod runs;
mod samples;

pub use memory::{ModelPlan, plan_memory};
pub use runs::{describe, evaluate_run, evaluate_weights, sample_run};

pub(super) use evaluate::{TestPass, evaluate};
pub(super) use samples::{draw, draw_restored};
