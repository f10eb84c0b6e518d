//! Euler's method in noise levels (Karras et al. 2022).

use phalanx_tensor::{Result, Tape, Value, ops};

use super::spacing::{karras, level_at, levels, timestep_of};
use super::steps::{no_such_step, pair};
use super::{NoiseOfStep, Sampler, SamplerConfig, SamplerOutput, Spacing, combine};
use crate::diffusion::schedule::{NoiseSchedule, Prediction};

/// First-order steps along dx/dσ = (x − image)/σ. Samples are x₀ + σ·ε; they are scaled down only for the network.
#[derive(Debug, Clone)]
pub struct Euler {
    timesteps: Vec<f64>,
    /// σ at every timestep, and 0 at the end.
    sigmas: Vec<f64>,
    init_noise_sigma: f64,
    prediction: Prediction,
    clip: Option<f64>,
}

impl Euler {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let levels = levels(schedule);
        let spacing = config.spacing.unwrap_or(Spacing::Linspace);
        let mut timesteps = spacing.timesteps(schedule.len(), config.steps, config.steps_offset, false);
        if spacing != Spacing::Linspace {
            timesteps.iter_mut().for_each(|timestep| *timestep = timestep.round_ties_even());
        }
        let mut sigmas: Vec<f64> = timesteps.iter().map(|timestep| level_at(&levels, *timestep)).collect();
        if config.karras {
            sigmas = karras(sigmas[0], sigmas[sigmas.len() - 1], config.steps);
            timesteps = sigmas.iter().map(|sigma| timestep_of(&levels, *sigma)).collect();
        }
        let largest = sigmas[0];
        let init_noise_sigma = match spacing {
            Spacing::Leading => (largest * largest + 1.0).sqrt(),
            Spacing::Linspace | Spacing::Trailing => largest,
        };
        sigmas.push(0.0);
        Self { timesteps, sigmas, init_noise_sigma, prediction, clip: config.clip }
    }
}

impl Sampler for Euler {
    fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    fn init_noise_sigma(&self) -> f64 {
        self.init_noise_sigma
    }

    fn scale_model_input(&self, tape: &Tape, sample: &Value, at: usize) -> Result<Value> {
        let sigma = self.sigmas.get(at).copied().ok_or_else(|| no_such_step(at, self.timesteps.len()))?;
        let of_network = match self.prediction {
            Prediction::Epsilon | Prediction::Velocity | Prediction::Sample => (sigma * sigma + 1.0).sqrt(),
            Prediction::Flow => sigma + 1.0,
        };
        ops::scale(tape, sample, 1.0 / of_network)
    }

    fn noise_levels(&self) -> Vec<f64> {
        self.sigmas.clone()
    }

    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        combine(tape, &[(1.0, images), (self.sigmas.get(at).copied().unwrap_or(0.0), noise)])
    }

    fn step(
        &mut self,
        tape: &Tape,
        sample: &Value,
        output: &Value,
        at: usize,
        _noise: NoiseOfStep<'_>,
    ) -> Result<SamplerOutput> {
        let [sigma, next] = pair(&self.sigmas, at)?;
        let square = sigma * sigma + 1.0;
        let mut image = match self.prediction {
            Prediction::Sample => output.clone(),
            Prediction::Epsilon => combine(tape, &[(1.0, sample), (-sigma, output)])?,
            Prediction::Velocity => {
                combine(tape, &[(1.0 / square, sample), (-sigma / square.sqrt(), output)])?
            }
            Prediction::Flow => {
                combine(tape, &[(1.0 / (sigma + 1.0), sample), (-sigma / (sigma + 1.0), output)])?
            }
        };
        if let Some(limit) = self.clip {
            image = ops::clamp(tape, &image, -limit, limit)?;
        }
        // x + (x − image)/σ·(σ' − σ), written so that x vanishes without noise.
        let kept = next / sigma;
        Ok(SamplerOutput { sample: combine(tape, &[(kept, sample), (1.0 - kept, &image)])?, image })
    }
}
