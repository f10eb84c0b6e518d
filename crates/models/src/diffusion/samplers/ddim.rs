//! Denoising diffusion implicit models (Song et al. 2021).

use phalanx_tensor::{Result, Tape, Value, ops};

use super::steps::{ScheduleSteps, roots};
use super::{NoiseOfStep, Sampler, SamplerConfig, SamplerOutput, combine, image_and_noise, network_input};
use crate::diffusion::schedule::{NoiseSchedule, Prediction};

/// Steps that add as much of the predicted noise as the next timestep has; `eta` replaces a part of it by fresh noise.
#[derive(Debug, Clone)]
pub struct Ddim {
    steps: ScheduleSteps,
    prediction: Prediction,
    eta: f64,
    clip: Option<f64>,
}

impl Ddim {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let last = if config.set_alpha_to_one { 1.0 } else { schedule.alphas_cumprod()[0] };
        let steps = ScheduleSteps::new(schedule, config, last);
        Self { steps, prediction, eta: config.eta, clip: config.clip }
    }
}

impl Sampler for Ddim {
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
        let (image, predicted) = image_and_noise(tape, sample, output, self.prediction, roots, self.clip)?;
        let variance = (1.0 - before) / (1.0 - alpha) * (1.0 - alpha / before);
        let fresh = self.eta * variance.sqrt();
        // Rounding may make the difference of nearly equal numbers negative.
        let kept = (1.0 - before - fresh * fresh).max(0.0).sqrt();
        let mut next = combine(tape, &[(before.sqrt(), &image), (kept, &predicted)])?;
        if fresh > 0.0 {
            next = ops::add(tape, &next, &ops::scale(tape, &noise()?, fresh)?)?;
        }
        Ok(SamplerOutput { sample: next, image })
    }
}
