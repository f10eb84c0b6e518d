//! Samplers: from noise to an image in few steps, given a network that predicts.
//!
//! A [`Sampler`] names the timesteps at which the network is asked ([`Sampler::timesteps`]) and takes each prediction
//! to move the sample ([`Sampler::step`]). [`Ddpm`] and [`Ddim`] follow the schedule's own steps, [`DpmSolver`] and
//! [`Euler`] solve the differential equation behind it. All compute what diffusers' schedulers of these names do.

mod ddim;
mod ddpm;
mod dpm_solver;
mod euler;
mod guidance;
mod noise;
mod spacing;

pub use ddim::Ddim;
pub use ddpm::{Ddpm, Variance};
pub use dpm_solver::DpmSolver;
pub use euler::Euler;
pub use guidance::Guidance;
pub use noise::noise_of_samples;
pub use spacing::Spacing;

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::schedule::{NoiseSchedule, Prediction, named};

/// What a step has led to.
#[derive(Debug, Clone)]
pub struct Denoised {
    /// The sample at the next timestep; after the last one the image.
    pub sample: Value,
    /// The image as the prediction of this step has it.
    pub image: Value,
}

/// Draws the noise of a step, of the sample's shape.
pub type NoiseOfStep<'n> = &'n mut dyn FnMut() -> Result<Value>;

/// Walks a sample from noise to an image.
pub trait Sampler: std::fmt::Debug {
    /// The timesteps at which the network is asked, from the noisiest on; Euler's may lie between those of the schedule.
    fn timesteps(&self) -> &[f64];

    /// σ = √((1 − ā)/ā) at every timestep, and what is left of the noise behind the last.
    fn noise_levels(&self) -> Vec<f64>;

    /// What standard normal noise is multiplied by to start from.
    fn init_noise_sigma(&self) -> f64 {
        1.0
    }

    /// The sample as the network takes it at step `at`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn scale_model_input(&self, _tape: &Tape, sample: &Value, _at: usize) -> Result<Value> {
        Ok(sample.clone())
    }

    /// Images with so much noise as samples have before step `at`; after the last step none.
    ///
    /// # Errors
    /// If the shapes differ.
    fn add_noise(&self, tape: &Tape, images: &Value, noise: &Value, at: usize) -> Result<Value>;

    /// Takes the network's output at step `at`. Steps are taken in order, from any one on.
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
    ) -> Result<Denoised>;
}

/// Which sampler.
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
    /// The samplers in order.
    pub const ALL: &'static [Self] = &[Self::Ddpm, Self::Ddim, Self::DpmSolver, Self::Euler];
}

named! { SamplerKind { Ddpm = "ddpm", Ddim = "ddim", DpmSolver = "dpm-solver++", Euler = "euler" } }

/// The settings of a sampler; each uses those that concern it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerConfig {
    /// Which sampler.
    pub kind: SamplerKind,
    /// How often the network is asked.
    pub steps: usize,
    /// How the timesteps are spread; nothing for the sampler's own way.
    pub spacing: Option<Spacing>,
    /// Leading spacing: what is added to every timestep.
    pub steps_offset: usize,
    /// DDIM: how much noise a step adds, from 0 to 1.
    pub eta: f64,
    /// DDPM: the variance of a step.
    pub variance: Variance,
    /// The predicted image is cut off at plus and minus this; nothing leaves it as it is. For pixels, which end at 1.
    pub clip: Option<f64>,
    /// DDIM: whether nothing of the noise is left after the last step, rather than that of timestep 0.
    pub set_alpha_to_one: bool,
    /// DPM-Solver++ and Euler: noise levels spread as Karras et al. 2022 do, densely where there is little.
    pub karras: bool,
}

impl SamplerConfig {
    /// A sampler of `steps` steps with diffusers' defaults, nothing cut off.
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

    /// A sampler for a network that has learnt to predict `prediction` under `schedule`.
    ///
    /// # Errors
    /// If there are no steps or more than the schedule has, `eta` is not in [0, 1], or noise is predicted where the schedule
    /// ends without any image, so that none could be told from it.
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
        if prediction == Prediction::Epsilon && schedule.alphas_cumprod().last() == Some(&0.0) {
            let value = prediction.to_string();
            return Err(argument(
                "prediction",
                value,
                "expected v_prediction for a zero-terminal-SNR schedule",
            ));
        }
        Ok(match self.kind {
            SamplerKind::Ddpm => Box::new(Ddpm::new(schedule, prediction, self)),
            SamplerKind::Ddim => Box::new(Ddim::new(schedule, prediction, self)),
            SamplerKind::DpmSolver => Box::new(DpmSolver::new(schedule, prediction, self)),
            SamplerKind::Euler => Box::new(Euler::new(schedule, prediction, self)),
        })
    }
}

/// Σ factor·value.
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

/// The image and the noise that a prediction at (`signal`, `strength`) = (√ā, √(1 − ā)) stands for, the image cut off
/// at `clip` and the noise what is left then.
fn image_and_noise(
    tape: &Tape,
    sample: &Value,
    output: &Value,
    prediction: Prediction,
    (signal, strength): (f64, f64),
    clip: Option<f64>,
) -> Result<(Value, Value)> {
    let (image, noise) = match prediction {
        Prediction::Epsilon => {
            let image = combine(tape, &[(1.0 / signal, sample), (-strength / signal, output)])?;
            (image, output.clone())
        }
        Prediction::Velocity => (
            combine(tape, &[(signal, sample), (-strength, output)])?,
            combine(tape, &[(signal, output), (strength, sample)])?,
        ),
    };
    let Some(limit) = clip else { return Ok((image, noise)) };
    let image = ops::clamp(tape, &image, -limit, limit)?;
    let noise = combine(tape, &[(1.0 / strength, sample), (-signal / strength, &image)])?;
    Ok((image, noise))
}
