//! DPM-Solver++ (2M) (Lu et al. 2022).

use phalanx_tensor::{Result, Tape, Value};

use super::spacing::{karras, level_at, levels, timestep_of};
use super::steps::pair;
use super::{
    NoiseOfStep, Sampler, SamplerConfig, SamplerOutput, Spacing, combine, image_and_noise, network_input,
};
use crate::diffusion::schedule::{NoiseSchedule, Prediction};

/// The second-order multistep solver of the diffusion ODE for predicted images, in its midpoint form. Its first step,
/// and its last step to zero noise, are of first order.
#[derive(Debug, Clone)]
pub struct DpmSolver {
    timesteps: Vec<f64>,
    /// σ at every timestep, and 0 at the end.
    sigmas: Vec<f64>,
    prediction: Prediction,
    clip: Option<f64>,
    /// The number of the previous step, and its predicted image.
    previous: Option<(usize, Value)>,
}

/// Returns √ā and √(1 − ā) of a noise level.
fn roots(sigma: f64) -> (f64, f64) {
    let signal = 1.0 / (sigma * sigma + 1.0).sqrt();
    (signal, sigma * signal)
}

impl DpmSolver {
    pub(super) fn new(schedule: &NoiseSchedule, prediction: Prediction, config: &SamplerConfig) -> Self {
        let levels = levels(schedule);
        let spacing = config.spacing.unwrap_or(Spacing::Linspace);
        let (mut timesteps, mut sigmas): (Vec<f64>, Vec<f64>);
        if config.karras {
            sigmas = karras(levels[levels.len() - 1], levels[0], config.steps);
            timesteps = sigmas.iter().map(|sigma| timestep_of(&levels, *sigma).round_ties_even()).collect();
        } else {
            timesteps = spacing.timesteps(schedule.len(), config.steps, config.steps_offset, true);
            timesteps.iter_mut().for_each(|timestep| *timestep = timestep.round_ties_even());
            sigmas = timesteps.iter().map(|timestep| level_at(&levels, *timestep)).collect();
        }
        sigmas.push(0.0);
        Self { timesteps, sigmas, prediction, clip: config.clip, previous: None }
    }
}

impl Sampler for DpmSolver {
    fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    fn scale_model_input(&self, tape: &Tape, sample: &Value, at: usize) -> Result<Value> {
        network_input(tape, sample, self.prediction, roots(pair(&self.sigmas, at)?[0]))
    }

    fn noise_levels(&self) -> Vec<f64> {
        self.sigmas.clone()
    }

    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value> {
        let (signal, strength) = roots(self.sigmas.get(at).copied().unwrap_or(0.0));
        combine(tape, &[(signal, images), (strength, noise)])
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
        let (image, _) = image_and_noise(tape, sample, output, self.prediction, roots(sigma), self.clip)?;
        let previous = self.previous.replace((at, image.clone()));
        // λ = ln(√ā/√(1 − ā)), infinite without noise.
        let lambda = |sigma: f64| -sigma.ln();
        let (of_next, strength) = roots(next);
        let h = lambda(next) - lambda(sigma);
        let (kept, added) = (strength / roots(sigma).1, -of_next * (-h).exp_m1());
        let known = previous.filter(|(before, _)| before + 1 == at && next > 0.0);
        let sample = match known {
            None => combine(tape, &[(kept, sample), (added, &image)])?,
            Some((before, previous)) => {
                let ratio = (lambda(sigma) - lambda(self.sigmas[before])) / h;
                let slope = 0.5 * added / ratio;
                combine(tape, &[(kept, sample), (added + slope, &image), (-slope, &previous)])?
            }
        };
        Ok(SamplerOutput { sample, image })
    }
}
