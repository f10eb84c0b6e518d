//! The timesteps of a sampler with the noise at each.

use phalanx_tensor::{Result, Tape, TensorError, Value};

use super::{SamplerConfig, Spacing, combine};
use crate::diffusion::schedule::NoiseSchedule;

/// Timesteps of the schedule itself, with ā at each and at the end.
#[derive(Debug, Clone)]
pub(super) struct ScheduleSteps {
    pub(super) timesteps: Vec<f64>,
    /// ā at every timestep, and ā of the result.
    alphas: Vec<f64>,
}

impl ScheduleSteps {
    /// Spreads the configured number of timesteps over a schedule; `last` is ā of the result.
    pub(super) fn new(schedule: &NoiseSchedule, config: &SamplerConfig, last: f64) -> Self {
        let spacing = config.spacing.unwrap_or(Spacing::Leading);
        let timesteps = spacing.timesteps(schedule.len(), config.steps, config.steps_offset, false);
        let timesteps: Vec<f64> = timesteps.into_iter().map(f64::round_ties_even).collect();
        let at = timesteps.iter().map(|timestep| schedule.alphas_cumprod()[*timestep as usize]);
        let alphas = at.chain(std::iter::once(last)).collect();
        Self { timesteps, alphas }
    }

    /// Returns σ = √((1 − ā)/ā) at every timestep and of the result.
    pub(super) fn noise_levels(&self) -> Vec<f64> {
        self.alphas.iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect()
    }

    /// Computes √ā·images + √(1 − ā)·noise for step `at`; after the last step, the images.
    pub(super) fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        let alpha = if at < self.timesteps.len() { self.alphas[at] } else { 1.0 };
        combine(tape, &[(alpha.sqrt(), images), ((1.0 - alpha).sqrt(), noise)])
    }

    /// Returns ā before and after step `at`.
    pub(super) fn step(&self, at: usize) -> Result<[f64; 2]> {
        pair(&self.alphas, at)
    }
}

/// Returns √ā and √(1 − ā).
pub(super) fn roots(alpha: f64) -> (f64, f64) {
    (alpha.sqrt(), (1.0 - alpha).sqrt())
}

/// Returns the values before and after step `at`; `values` has one more entry than there are steps.
pub(super) fn pair(values: &[f64], at: usize) -> Result<[f64; 2]> {
    match values.get(at..at + 2) {
        Some(&[before, after]) => Ok([before, after]),
        _ => Err(no_such_step(at, values.len().saturating_sub(1))),
    }
}

/// Makes the error of a step out of range.
pub(super) fn no_such_step(at: usize, steps: usize) -> TensorError {
    TensorError::Argument {
        name: "step",
        value: format!("{at} of {steps}"),
        expected: "expected one of the steps",
    }
}
