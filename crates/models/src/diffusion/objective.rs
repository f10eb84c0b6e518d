//! Training objectives: noisy samples, targets and weights.

use phalanx_tensor::{Result, Tape, Value, ops};

use super::schedule::{NoiseSchedule, Prediction, per_sample};

/// A training objective of diffusion.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    /// The noise of every timestep.
    pub schedule: NoiseSchedule,
    /// The target of the network.
    pub prediction: Prediction,
    /// γ of min-SNR weighting (see [`NoiseSchedule::min_snr_weight`]); `None` weights all timesteps equally.
    pub min_snr: Option<f64>,
}

/// Noisy samples and the targets of the network.
#[derive(Debug, Clone)]
pub struct NoisySamples {
    /// The noisy images.
    pub sample: Value,
    /// The noise, the velocity, the direction of the flow, or the image.
    pub target: Value,
}

impl Objective {
    /// Makes an objective.
    ///
    /// # Errors
    /// If noise is predicted and the schedule ends in pure noise: the prediction at that timestep would carry no
    /// information about the image.
    pub fn new(schedule: NoiseSchedule, prediction: Prediction, min_snr: Option<f64>) -> Result<Self> {
        prediction.check(&schedule)?;
        Ok(Self { schedule, prediction, min_snr })
    }

    /// Makes noisy samples of images and noise [N, C, H, W], each at its timestep, and their targets.
    ///
    /// # Errors
    /// If the shapes differ, or there is not one timestep of the schedule for each sample.
    pub fn noisy_samples(
        &self,
        tape: &Tape,
        images: &Value,
        noise: &Value,
        timesteps: &[usize],
    ) -> Result<NoisySamples> {
        let sample = match self.prediction {
            Prediction::Flow => self.schedule.interpolate(tape, images, noise, timesteps)?,
            _ => self.schedule.add_noise(tape, images, noise, timesteps)?,
        };
        let target = match self.prediction {
            Prediction::Epsilon => noise.clone(),
            Prediction::Velocity => self.schedule.velocity(tape, images, noise, timesteps)?,
            Prediction::Flow => ops::sub(tape, noise, images)?,
            Prediction::Sample => images.clone(),
        };
        Ok(NoisySamples { sample, target })
    }

    /// Scales prediction and target so that the squared error of each sample has its weight.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn weighted(
        &self,
        tape: &Tape,
        prediction: Value,
        target: Value,
        timesteps: &[usize],
    ) -> Result<(Value, Value)> {
        let Some(gamma) = self.min_snr else { return Ok((prediction, target)) };
        let weight = |timestep: &usize| self.schedule.min_snr_weight(*timestep, gamma, self.prediction);
        let roots: Vec<f64> = timesteps.iter().map(|timestep| weight(timestep).sqrt()).collect();
        let roots = per_sample(tape, &roots, &prediction)?;
        Ok((ops::broadcast_mul(tape, &prediction, &roots)?, ops::broadcast_mul(tape, &target, &roots)?))
    }

    /// Moves numbers in [0, 1) to the noisy end: u becomes s·u / (1 + (s − 1)·u), whose density at the end is s times the uniform one
    /// (Esser et al. 2024). A shift of 1 changes nothing.
    pub fn shifted(uniform: &[f64], shift: f64) -> Vec<f64> {
        uniform.iter().map(|number| shift * number / (1.0 + (shift - 1.0) * number)).collect()
    }

    /// Converts numbers in [0, 1) to timesteps.
    pub fn timesteps(&self, uniform: &[f64]) -> Vec<usize> {
        let last = self.schedule.len() - 1;
        uniform.iter().map(|number| ((number * self.schedule.len() as f64) as usize).min(last)).collect()
    }
}
