//! Ancestral sampling (Ho et al. 2020).

use phalanx_tensor::{Result, Tape, Value, ops};

use super::steps::{ScheduleSteps, roots};
use super::{NoiseOfStep, Sampler, SamplerConfig, SamplerOutput, combine, image_and_noise, network_input};
use crate::diffusion::schedule::{NoiseSchedule, Prediction};
use crate::names::named;

/// The variance of the noise in a step of [`Ddpm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variance {
    /// The variance of the posterior given the image.
    FixedSmall,
    /// β of the step, as in DDPM's CIFAR-10 results.
    FixedLarge,
}

named! { Variance { FixedSmall = "fixed_small", FixedLarge = "fixed_large" } }

/// Ancestral sampling: each step samples the posterior of the step before, given the predicted image.
#[derive(Debug, Clone)]
pub struct Ddpm {
    steps: ScheduleSteps,
    prediction: Prediction,
    variance: Variance,
    clip: Option<f64>,
}

impl Ddpm {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let steps = ScheduleSteps::new(schedule, config, 1.0);
        Self { steps, prediction, variance: config.variance, clip: config.clip }
    }
}

impl Sampler for Ddpm {
    fn timesteps(&self) -> &[f64] {
        &self.steps.timesteps
    }

    fn noise_levels(&self) -> Vec<f64> {
        self.steps.noise_levels()
    }

    fn scale_model_input(&self, tape: &Tape, sample: &Value, at: usize) -> Result<Value> {
        network_input(tape, sample, self.prediction, roots(self.steps.step(at)?[0]))
    }

    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        self.steps.add_noise(tape, images, noise, at)
    }

    fn step(
        &mut self,
        tape: &Tape,
        sample: &Value,
        output: &Value,
        at: usize,
        noise: NoiseOfStep<'_>,
    ) -> Result<SamplerOutput> {
        let [alpha, before] = self.steps.step(at)?;
        let roots = roots(alpha);
        let (image, _) = image_and_noise(tape, sample, output, self.prediction, roots, self.clip)?;
        let kept = alpha / before;
        let of_image = before.sqrt() * (1.0 - kept) / (1.0 - alpha);
        let of_sample = kept.sqrt() * (1.0 - before) / (1.0 - alpha);
        let mut next = combine(tape, &[(of_image, &image), (of_sample, sample)])?;
        if self.steps.timesteps[at] > 0.0 {
            let variance = match self.variance {
                Variance::FixedSmall => ((1.0 - before) / (1.0 - alpha) * (1.0 - kept)).max(1e-20),
                Variance::FixedLarge => 1.0 - kept,
            };
            next = ops::add(tape, &next, &ops::scale(tape, &noise()?, variance.sqrt())?)?;
        }
        Ok(SamplerOutput { sample: next, image })
    }
}
