//! Ancestral sampling (Ho et al. 2020).

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::{Denoised, NoiseOfStep, Sampler, SamplerConfig, Spacing, combine, image_and_noise};
use crate::diffusion::schedule::{NoiseSchedule, Prediction, named};

/// How much noise a step of [`Ddpm`] adds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variance {
    /// The variance of the posterior given the image.
    FixedSmall,
    /// β of the step: what DDPM's CIFAR-10 results were drawn with.
    FixedLarge,
}

named! { Variance { FixedSmall = "fixed_small", FixedLarge = "fixed_large" } }

/// Ancestral sampling: each step draws from the posterior of the one before, given the predicted image.
#[derive(Debug, Clone)]
pub struct Ddpm {
    timesteps: Vec<f64>,
    /// ā at every timestep, and 1 behind the last.
    alphas: Vec<f64>,
    prediction: Prediction,
    variance: Variance,
    clip: Option<f64>,
}

impl Ddpm {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let spacing = config.spacing.unwrap_or(Spacing::Leading);
        let timesteps = whole_timesteps(spacing, schedule, config);
        let alphas = alphas_at(schedule, &timesteps, 1.0);
        Self { timesteps, alphas, prediction, variance: config.variance, clip: config.clip }
    }
}

/// Timesteps of the schedule itself.
pub(super) fn whole_timesteps(
    spacing: Spacing,
    schedule: &NoiseSchedule,
    config: &SamplerConfig,
) -> Vec<f64> {
    let timesteps = spacing.timesteps(schedule.len(), config.steps, config.steps_offset, false);
    timesteps.into_iter().map(f64::round_ties_even).collect()
}

/// ā at timesteps, and `last` behind them.
pub(super) fn alphas_at(schedule: &NoiseSchedule, timesteps: &[f64], last: f64) -> Vec<f64> {
    let at = timesteps.iter().map(|timestep| schedule.alphas_cumprod()[*timestep as usize]);
    at.chain(std::iter::once(last)).collect()
}

/// √ā·images + √(1 − ā)·noise.
pub(super) fn add_noise(tape: &Tape, images: &Value, noise: &Value, alpha: f64) -> Result<Value> {
    combine(tape, &[(alpha.sqrt(), images), ((1.0 - alpha).sqrt(), noise)])
}

/// The error of a step that is none.
pub(super) fn no_such_step(at: usize, steps: usize) -> TensorError {
    TensorError::Argument {
        name: "step",
        value: format!("{at} of {steps}"),
        expected: "expected one of the steps",
    }
}

impl Sampler for Ddpm {
    fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    fn noise_levels(&self) -> Vec<f64> {
        self.alphas.iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect()
    }

    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        add_noise(tape, images, noise, self.alphas.get(at).copied().unwrap_or(1.0))
    }

    fn step(
        &mut self,
        tape: &Tape,
        sample: &Value,
        output: &Value,
        at: usize,
        noise: NoiseOfStep<'_>,
    ) -> Result<Denoised> {
        let [alpha, before] = self.alphas.get(at..at + 2).unwrap_or_default() else {
            return Err(no_such_step(at, self.timesteps.len()));
        };
        let roots = (alpha.sqrt(), (1.0 - alpha).sqrt());
        let (image, _) = image_and_noise(tape, sample, output, self.prediction, roots, self.clip)?;
        let kept = alpha / before;
        let of_image = before.sqrt() * (1.0 - kept) / (1.0 - alpha);
        let of_sample = kept.sqrt() * (1.0 - before) / (1.0 - alpha);
        let mut next = combine(tape, &[(of_image, &image), (of_sample, sample)])?;
        if self.timesteps[at] > 0.0 {
            let variance = match self.variance {
                Variance::FixedSmall => ((1.0 - before) / (1.0 - alpha) * (1.0 - kept)).max(1e-20),
                Variance::FixedLarge => 1.0 - kept,
            };
            next = ops::add(tape, &next, &ops::scale(tape, &noise()?, variance.sqrt())?)?;
        }
        Ok(Denoised { sample: next, image })
    }
}
