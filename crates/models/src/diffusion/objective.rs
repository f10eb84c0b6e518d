//! What is learnt of images: noisy ones, what is to be told from them, and how much each counts.

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::schedule::{NoiseSchedule, Prediction, per_sample};

/// A training objective of diffusion.
#[derive(Debug, Clone, PartialEq)]
pub struct Objective {
    /// The noise of every timestep.
    pub schedule: NoiseSchedule,
    /// What the network predicts.
    pub prediction: Prediction,
    /// γ of min-SNR weighting (see [`NoiseSchedule::min_snr_weight`]); without it every timestep's squared error counts
    /// alike.
    pub min_snr: Option<f64>,
}

/// What a network is shown, and what it is to predict.
#[derive(Debug, Clone)]
pub struct NoisySamples {
    /// The noisy images.
    pub sample: Value,
    /// The noise, or the velocity.
    pub target: Value,
}

impl Objective {
    /// An objective.
    ///
    /// # Errors
    /// If noise is to be predicted where the schedule ends without any image: of that timestep nothing could be learnt
    /// that is of use, and no image could be told from it.
    pub fn new(schedule: NoiseSchedule, prediction: Prediction, min_snr: Option<f64>) -> Result<Self> {
        if prediction == Prediction::Epsilon && schedule.alphas_cumprod().last() == Some(&0.0) {
            let (value, expected) =
                (prediction.to_string(), "expected v_prediction for a zero-terminal-SNR schedule");
            return Err(TensorError::Argument { name: "prediction", value, expected });
        }
        Ok(Self { schedule, prediction, min_snr })
    }

    /// Noisy images of images and noise [N, C, H, W], each at its timestep, and what is to be predicted of them.
    ///
    /// # Errors
    /// If the shapes differ, or there is not a timestep of the schedule for each sample.
    pub fn noisy_samples(
        &self,
        tape: &Tape,
        images: &Value,
        noise: &Value,
        timesteps: &[usize],
    ) -> Result<NoisySamples> {
        let sample = self.schedule.add_noise(tape, images, noise, timesteps)?;
        let target = match self.prediction {
            Prediction::Epsilon => noise.clone(),
            Prediction::Velocity => self.schedule.velocity(tape, images, noise, timesteps)?,
        };
        Ok(NoisySamples { sample, target })
    }

    /// Prediction and target so scaled that the squared difference of each sample is weighted as it is to count.
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

    /// The timesteps of numbers in [0, 1).
    pub fn timesteps(&self, drawn: &[f64]) -> Vec<usize> {
        let last = self.schedule.len() - 1;
        drawn.iter().map(|number| ((number * self.schedule.len() as f64) as usize).min(last)).collect()
    }
}
