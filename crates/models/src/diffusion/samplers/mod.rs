//! Samplers: from noise to an image in a few steps of a network.
//!
//! A [`Sampler`] defines the timesteps at which the network is evaluated ([`Sampler::timesteps`]), and moves the sample
//! by each prediction ([`Sampler::step`]). [`Ddpm`] and [`Ddim`] follow the steps of the schedule; [`DpmSolver`] and
//! [`Euler`] solve its differential equation. All agree with diffusers' schedulers of these names.
//!
//! Samples are √ā·x₀ + √(1 − ā)·ε, or x₀ + σ·ε of Euler. A network of a flow gets them scaled to its straight path; a step of
//! [`Ddim`] without fresh noise, or of [`Euler`], is then a step of Euler's method along the flow.

mod ddim;
mod ddpm;
mod dpm_solver;
mod euler;
mod guidance;
mod noise;
mod spacing;
mod steps;

pub use ddim::Ddim;
pub use ddpm::{Ddpm, Variance};
pub use dpm_solver::DpmSolver;
pub use euler::Euler;
pub use guidance::Guidance;
pub use noise::noise_of_samples;
pub use spacing::Spacing;

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::schedule::{NoiseSchedule, Prediction};
use crate::names::named;

/// The result of a step.
#[derive(Debug, Clone)]
pub struct SamplerOutput {
    /// The sample at the next timestep; after the last step, the image.
    pub sample: Value,
    /// The image that this step predicts.
    pub image: Value,
}

/// A function that returns the noise of a step, with the sample's shape.
pub type NoiseOfStep<'n> = &'n mut dyn FnMut() -> Result<Value>;

/// A sampler: the steps from noise to an image.
pub trait Sampler: std::fmt::Debug {
    /// Returns the timesteps at which the network is evaluated, from the noisiest on. Euler's may lie between those of
    /// the schedule.
    fn timesteps(&self) -> &[f64];

    /// Returns σ = √((1 − ā)/ā) at every timestep, and the remaining noise at the end.
    fn noise_levels(&self) -> Vec<f64>;

    /// Returns the factor of the initial standard normal noise.
    fn init_noise_sigma(&self) -> f64 {
        1.0
    }

    /// Scales a sample for the network at step `at`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn scale_model_input(&self, _tape: &Tape, sample: &Value, _at: usize) -> Result<Value> {
        Ok(sample.clone())
    }

    /// Adds to images the noise of samples before step `at`; none after the last step.
    ///
    /// # Errors
    /// If the shapes differ.
    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value>;

    /// Moves the sample by the network's output at step `at`. Steps are run in order, from any start.
    ///
    /// # Errors
    /// If the shapes differ.
    fn step(
        &mut self,
        tape: &Tape,
        sample: &Value,
        output: &Value,
        at: usize,
        noise: NoiseOfStep<'_>,
    ) -> Result<SamplerOutput>;
}

/// The kinds of samplers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SamplerKind {
    /// Ancestral sampling (Ho et al. 2020): the schedule's steps backwards, with noise in each.
    Ddpm,
    /// Denoising diffusion implicit models (Song et al. 2021): with `eta` 0 without noise, with 1 like DDPM.
    Ddim,
    /// DPM-Solver++ (2M) (Lu et al. 2022): second order, each step from two predictions.
    DpmSolver,
    /// Euler's method (Karras et al. 2022): first order.
    Euler,
}

impl SamplerKind {
    /// All samplers.
    pub const ALL: &'static [Self] = &[Self::Ddpm, Self::Ddim, Self::DpmSolver, Self::Euler];
}

named! { SamplerKind { Ddpm = "ddpm", Ddim = "ddim", DpmSolver = "dpm-solver++", Euler = "euler" } }

/// The settings of a sampler; each sampler uses those that concern it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerConfig {
    /// The kind of sampler.
    pub kind: SamplerKind,
    /// The number of network evaluations.
    pub steps: usize,
    /// The spacing of the timesteps; `None` for the sampler's default.
    pub spacing: Option<Spacing>,
    /// The number added to every timestep (leading spacing).
    pub steps_offset: usize,
    /// The amount of noise in a step, from 0 to 1 (DDIM).
    pub eta: f64,
    /// The variance of a step (DDPM).
    pub variance: Variance,
    /// The limit at which the predicted image is clamped, 1 for pixels; `None` does not clamp.
    pub clip: Option<f64>,
    /// Removes all noise in the last step, rather than leaving that of timestep 0 (DDIM).
    pub set_alpha_to_one: bool,
    /// Spreads noise levels as in Karras et al. 2022, densely at low noise (DPM-Solver++ and Euler).
    pub karras: bool,
}

impl SamplerConfig {
    /// Returns the settings of `steps` steps with diffusers' defaults, not clamped.
    pub fn new(kind: SamplerKind, steps: usize) -> Self {
        Self {
            kind,
            steps,
            spacing: None,
            steps_offset: 0,
            eta: 0.0,
            variance: Variance::FixedSmall,
            clip: None,
            set_alpha_to_one: true,
            karras: false,
        }
    }

    /// Makes the sampler for a network that was trained to predict `prediction` under `schedule`.
    ///
    /// # Errors
    /// If there are no steps or more than the schedule has, `eta` is not in [0, 1], or noise is predicted and the
    /// schedule ends in pure noise.
    pub fn sampler(&self, schedule: &NoiseSchedule, prediction: Prediction) -> Result<Box<dyn Sampler>> {
        let argument = |name, value: String, expected| TensorError::Argument { name, value, expected };
        if self.steps == 0 || self.steps > schedule.len() {
            let value = format!("{} of a schedule of {}", self.steps, schedule.len());
            return Err(argument(
                "steps",
                value,
                "expected at least 1, and at most as many as the schedule has",
            ));
        }
        if !(0.0..=1.0).contains(&self.eta) {
            return Err(argument("eta", self.eta.to_string(), "expected 0 to 1"));
        }
        prediction.check(schedule)?;
        Ok(match self.kind {
            SamplerKind::Ddpm => Box::new(Ddpm::new(schedule, prediction, self)),
            SamplerKind::Ddim => Box::new(Ddim::new(schedule, prediction, self)),
            SamplerKind::DpmSolver => Box::new(DpmSolver::new(schedule, prediction, self)),
            SamplerKind::Euler => Box::new(Euler::new(schedule, prediction, self)),
        })
    }
}

/// Returns Σ factor·value.
fn combine(tape: &Tape, terms: &[(f64, &Value)]) -> Result<Value> {
    let mut sum: Option<Value> = None;
    for (factor, value) in terms {
        let term = ops::scale(tape, value, *factor)?;
        sum = Some(match sum {
            Some(sum) => ops::add(tape, &sum, &term)?,
            None => term,
        });
    }
    sum.ok_or_else(|| TensorError::Backward("a sum of nothing".into()))
}

/// Returns the network's input of a sample `signal`·x₀ + `strength`·ε.
fn network_input(
    tape: &Tape,
    sample: &Value,
    prediction: Prediction,
    (signal, strength): (f64, f64),
) -> Result<Value> {
    match prediction {
        Prediction::Epsilon | Prediction::Velocity | Prediction::Sample => Ok(sample.clone()),
        // The factors of image and noise add up to 1.
        Prediction::Flow => ops::scale(tape, sample, 1.0 / (signal + strength)),
    }
}

/// Converts a prediction at (`signal`, `strength`) = (√ā, √(1 − ā)) to image and noise. With `clip` the image is
/// clamped and the noise is the rest.
fn image_and_noise(
    tape: &Tape,
    sample: &Value,
    output: &Value,
    prediction: Prediction,
    (signal, strength): (f64, f64),
    clip: Option<f64>,
) -> Result<(Value, Value)> {
    let rest = |image: &Value| combine(tape, &[(1.0 / strength, sample), (-signal / strength, image)]);
    let (image, noise) = match prediction {
        Prediction::Sample => (output.clone(), rest(output)?),
        Prediction::Epsilon => {
            let image = combine(tape, &[(1.0 / signal, sample), (-strength / signal, output)])?;
            (image, output.clone())
        }
        Prediction::Velocity => (
            combine(tape, &[(signal, sample), (-strength, output)])?,
            combine(tape, &[(signal, output), (strength, sample)])?,
        ),
        Prediction::Flow => {
            let whole = signal + strength;
            (
                combine(tape, &[(1.0 / whole, sample), (-strength / whole, output)])?,
                combine(tape, &[(1.0 / whole, sample), (signal / whole, output)])?,
            )
        }
    };
    let Some(limit) = clip else { return Ok((image, noise)) };
    let image = ops::clamp(tape, &image, -limit, limit)?;
    let noise = rest(&image)?;
    Ok((image, noise))
}
