//! Denoising diffusion implicit models (Song et al. 2021).

use phalanx_tensor::{Result, Tape, Value, ops};

use super::ddpm::{add_noise, alphas_at, no_such_step, whole_timesteps};
use super::{Denoised, NoiseOfStep, Sampler, SamplerConfig, Spacing, combine, image_and_noise};
use crate::diffusion::schedule::{NoiseSchedule, Prediction};

/// Steps that add as much of the predicted noise as the next timestep has, a part of it exchanged for fresh noise by `eta`.
#[derive(Debug, Clone)]
pub struct Ddim {
    timesteps: Vec<f64>,
    /// ā at every timestep, and behind the last.
    alphas: Vec<f64>,
    prediction: Prediction,
    eta: f64,
    clip: Option<f64>,
}

impl Ddim {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let timesteps = whole_timesteps(config.spacing.unwrap_or(Spacing::Leading), schedule, config);
        let last = if config.set_alpha_to_one { 1.0 } else { schedule.alphas_cumprod()[0] };
        let alphas = alphas_at(schedule, &timesteps, last);
        Self { timesteps, alphas, prediction, eta: config.eta, clip: config.clip }
    }
}

impl Sampler for Ddim {
    fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    fn noise_levels(&self) -> Vec<f64> {
        self.alphas.iter().map(|alpha| ((1.0 - alpha) / alpha).sqrt()).collect()
    }

    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        let inside = (at < self.timesteps.len()).then(|| self.alphas[at]);
        add_noise(tape, images, noise, inside.unwrap_or(1.0))
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
        let (image, predicted) = image_and_noise(tape, sample, output, self.prediction, roots, self.clip)?;
        let variance = (1.0 - before) / (1.0 - alpha) * (1.0 - alpha / before);
        let fresh = self.eta * variance.sqrt();
        // Rounding may make the difference of nearly equal numbers negative.
        let kept = (1.0 - before - fresh * fresh).max(0.0).sqrt();
        let mut next = combine(tape, &[(before.sqrt(), &image), (kept, &predicted)])?;
        if fresh > 0.0 {
            next = ops::add(tape, &next, &ops::scale(tape, &noise()?, fresh)?)?;
        }
        Ok(Denoised { sample: next, image })
    }
}
