//! Noise schedules and prediction targets of diffusion models.
//!
//! After t of T steps an image x₀ is x_t = √ā_t·x₀ + √(1 − ā_t)·ε, ε standard normal. A schedule is the numbers ā_t =
//! Π(1 − β_s). Everything here is computed in f64.
//!
//! Rectified flow (Liu et al. 2023) is the straight path (1 − s)·x₀ + s·ε instead, where s is the share of noise. Divided by
//! √((1 − s)² + s²) it is x_t of the same signal-to-noise ratio: each ā has an s, and schedules and samplers serve both.

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use crate::names::named;

/// The growth of β.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BetaSchedule {
    /// Linearly (Ho et al. 2020).
    Linear,
    /// Linearly in its square root (Rombach et al. 2022, who call it linear).
    ScaledLinear,
    /// Such that ā follows a squared cosine, with each β at most 0.999 (Nichol & Dhariwal 2021; `squaredcos_cap_v2` in
    /// diffusers).
    Cosine,
    /// Such that the share of noise grows evenly, to 1 at the last timestep: the straight path of rectified flow (Liu et al.
    /// 2023). It ends in pure noise.
    Flow,
}

impl BetaSchedule {
    /// All schedules.
    pub const ALL: &'static [Self] = &[Self::Linear, Self::ScaledLinear, Self::Cosine, Self::Flow];

    /// Returns the first and last β of the schedule's authors; unused by cosine and flow.
    pub fn usual_range(self) -> (f64, f64) {
        match self {
            Self::Linear | Self::Cosine | Self::Flow => (1e-4, 0.02),
            Self::ScaledLinear => (8.5e-4, 0.012),
        }
    }
}

/// The target of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prediction {
    /// The noise ε.
    Epsilon,
    /// The velocity v = √ā·ε − √(1 − ā)·x₀ (Salimans & Ho 2022).
    Velocity,
    /// The direction ε − x₀ of the straight path (1 − s)·x₀ + s·ε, which the network gets as its input (Liu et al. 2023; Lipman et
    /// al. 2023).
    Flow,
    /// The image x₀.
    Sample,
}

impl Prediction {
    /// All targets.
    pub const ALL: &'static [Self] = &[Self::Epsilon, Self::Velocity, Self::Flow, Self::Sample];

    /// Checks that a prediction carries information about the image at every timestep of a schedule.
    pub(super) fn check(self, schedule: &NoiseSchedule) -> Result<()> {
        if self != Self::Epsilon || !schedule.ends_in_noise() {
            return Ok(());
        }
        let expected =
            "expected v_prediction, flow_prediction or sample for a schedule that ends in pure noise";
        Err(TensorError::Argument { name: "prediction", value: self.to_string(), expected })
    }
}

named! {
    BetaSchedule { Linear = "linear", ScaledLinear = "scaled_linear", Cosine = "cosine" | "squaredcos_cap_v2", Flow = "flow" }
    Prediction { Epsilon = "epsilon", Velocity = "v_prediction", Flow = "flow_prediction", Sample = "sample" }
}

/// The largest number of timesteps; usual schedules have a thousand.
const MAX_STEPS: usize = 1 << 20;

/// The amount of noise at every timestep.
#[derive(Debug, Clone, PartialEq)]
pub struct NoiseSchedule {
    betas: Vec<f64>,
    alphas_cumprod: Vec<f64>,
}

impl NoiseSchedule {
    /// Makes a schedule of `steps` timesteps, with β from `range.0` to `range.1` (ignored by cosine and flow).
    ///
    /// # Errors
    /// If there are fewer than 2 or more than 1,048,576 steps, or β is not in (0, 1) or decreases.
    pub fn new(kind: BetaSchedule, steps: usize, range: (f64, f64)) -> Result<Self> {
        let (first, last) = range;
        let is_range = first > 0.0 && first <= last && last < 1.0;
        if !is_range || !(2..=MAX_STEPS).contains(&steps) {
            let value = format!("{steps} steps from {first} to {last}");
            return Err(TensorError::Argument {
                name: "schedule",
                value,
                expected: "expected 2 to 1048576 steps, and betas that rise within (0, 1)",
            });
        }
        let part = |i: usize| i as f64 / (steps - 1) as f64;
        let beta = |i: usize| match kind {
            BetaSchedule::Linear => first + (last - first) * part(i),
            BetaSchedule::ScaledLinear => (first.sqrt() + (last.sqrt() - first.sqrt()) * part(i)).powi(2),
            BetaSchedule::Cosine => {
                let bar = |t: f64| ((t + 0.008) / 1.008 * std::f64::consts::FRAC_PI_2).cos().powi(2);
                let at = |i: usize| bar(i as f64 / steps as f64);
                (1.0 - at(i + 1) / at(i)).min(0.999)
            }
            BetaSchedule::Flow => {
                let bar = |shares: usize| {
                    let noise = shares as f64 / steps as f64;
                    (1.0 - noise).powi(2) / ((1.0 - noise).powi(2) + noise.powi(2))
                };
                1.0 - bar(i + 1) / bar(i)
            }
        };
        let betas: Vec<f64> = (0..steps).map(beta).collect();
        let mut product = 1.0;
        let alphas_cumprod = betas.iter().map(|beta| {
            product *= 1.0 - beta;
            product
        });
        Ok(Self { alphas_cumprod: alphas_cumprod.collect(), betas })
    }

    /// Stretches the schedule so that it ends in pure noise (Lin et al. 2024): √ā is shifted to 0 there and scaled to
    /// keep its first value. A network must then predict velocity, since a noise prediction carries no information
    /// about the image at the end.
    #[must_use]
    pub fn zero_terminal_snr(&self) -> Self {
        let roots: Vec<f64> = self.alphas_cumprod.iter().map(|alpha| alpha.sqrt()).collect();
        let (first, last) = (roots[0], roots[roots.len() - 1]);
        let stretched = roots.iter().map(|root| (root - last) * first / (first - last));
        Self::of_alphas(stretched.map(|root| root * root).collect())
    }

    /// Divides the signal-to-noise ratio of every timestep by `shift`² (Hoogeboom et al. 2023). Noise of neighbouring
    /// pixels averages out, so the larger an image, the more noise hides it: twice the height and width need a shift of
    /// 2.
    ///
    /// # Errors
    /// If the shift is not a number above 0.
    pub fn shifted(&self, shift: f64) -> Result<Self> {
        if !(shift.is_finite() && shift > 0.0) {
            let expected = "expected a number above 0";
            return Err(TensorError::Argument { name: "shift", value: shift.to_string(), expected });
        }
        let alphas = self.alphas_cumprod.iter().map(|alpha| alpha / (alpha + (1.0 - alpha) * shift * shift));
        Ok(Self::of_alphas(alphas.collect()))
    }

    fn of_alphas(alphas_cumprod: Vec<f64>) -> Self {
        let ratios = alphas_cumprod.windows(2).map(|pair| 1.0 - pair[1] / pair[0]);
        let betas = std::iter::once(1.0 - alphas_cumprod[0]).chain(ratios).collect();
        Self { betas, alphas_cumprod }
    }

    /// Returns the number of timesteps.
    pub fn len(&self) -> usize {
        self.betas.len()
    }

    /// Returns true without timesteps, which no schedule has.
    pub fn is_empty(&self) -> bool {
        self.betas.is_empty()
    }

    /// Returns β of every timestep.
    pub fn betas(&self) -> &[f64] {
        &self.betas
    }

    /// Returns ā of every timestep.
    pub fn alphas_cumprod(&self) -> &[f64] {
        &self.alphas_cumprod
    }

    /// Returns true if nothing of the image is left at the end. A network must then predict something else than the noise, which
    /// carries no information about the image there.
    pub fn ends_in_noise(&self) -> bool {
        self.alphas_cumprod.last() == Some(&0.0)
    }

    /// Returns the signal-to-noise ratio ā/(1 − ā) at a timestep.
    pub fn snr(&self, timestep: usize) -> f64 {
        let alpha = self.alphas_cumprod[timestep];
        alpha / (1.0 - alpha)
    }

    /// Returns the weight of a sample's squared error by min-SNR weighting (Hang et al. 2023): min(snr, γ)/snr for
    /// noise, min(snr, γ)/(snr + 1) for velocity, min(snr, γ)/(√snr + 1)² for flow, min(snr, γ) for the image. It weights the error of the image by at most
    /// `gamma`.
    pub fn min_snr_weight(&self, timestep: usize, gamma: f64, prediction: Prediction) -> f64 {
        let snr = self.snr(timestep);
        match prediction {
            // Without signal both are 0; their ratio is 1.
            Prediction::Epsilon if snr == 0.0 => 1.0,
            Prediction::Epsilon => snr.min(gamma) / snr,
            Prediction::Velocity => snr.min(gamma) / (snr + 1.0),
            Prediction::Flow => snr.min(gamma) / (snr.sqrt() + 1.0).powi(2),
            Prediction::Sample => snr.min(gamma),
        }
    }

    /// Computes √ā·`images` + √(1 − ā)·`noise`, each sample at its timestep.
    ///
    /// # Errors
    /// If the shapes differ, or there is not one timestep of this schedule for each sample.
    pub fn add_noise(
        &self,
        tape: &Tape,
        images: &Value,
        noise: &Value,
        timesteps: &[usize],
    ) -> Result<Value> {
        let [signal, strength] = self.roots(tape, images, timesteps)?;
        let images = ops::broadcast_mul(tape, images, &signal)?;
        ops::add(tape, &images, &ops::broadcast_mul(tape, noise, &strength)?)
    }

    /// Computes the velocity √ā·`noise` − √(1 − ā)·`images`, each sample at its timestep.
    ///
    /// # Errors
    /// If the shapes differ, or there is not one timestep of this schedule for each sample.
    pub fn velocity(&self, tape: &Tape, images: &Value, noise: &Value, timesteps: &[usize]) -> Result<Value> {
        let [signal, strength] = self.roots(tape, images, timesteps)?;
        let noise = ops::broadcast_mul(tape, noise, &signal)?;
        ops::sub(tape, &noise, &ops::broadcast_mul(tape, images, &strength)?)
    }

    /// Computes (1 − s)·`images` + s·`noise`, each sample at its timestep's share s of noise.
    ///
    /// # Errors
    /// If the shapes differ, or there is not one timestep of this schedule for each sample.
    pub fn interpolate(
        &self,
        tape: &Tape,
        images: &Value,
        noise: &Value,
        timesteps: &[usize],
    ) -> Result<Value> {
        let share = |alpha: f64| {
            let (signal, strength) = (alpha.sqrt(), (1.0 - alpha).sqrt());
            strength / (signal + strength)
        };
        let shares = self.numbers(tape, images, timesteps, share)?;
        let change = ops::broadcast_mul(tape, &ops::sub(tape, noise, images)?, &shares)?;
        ops::add(tape, images, &change)
    }

    /// Returns √ā and √(1 − ā) of each sample, one number each, with as many dimensions as `like`.
    fn roots(&self, tape: &Tape, like: &Value, timesteps: &[usize]) -> Result<[Value; 2]> {
        let signal = self.numbers(tape, like, timesteps, f64::sqrt)?;
        Ok([signal, self.numbers(tape, like, timesteps, |alpha| (1.0 - alpha).sqrt())?])
    }

    /// Returns a function of ā of each sample, one number each, with as many dimensions as `like`.
    fn numbers(
        &self,
        tape: &Tape,
        like: &Value,
        timesteps: &[usize],
        of: impl Fn(f64) -> f64,
    ) -> Result<Value> {
        let samples = like.dims().first().copied().unwrap_or(0);
        let unknown = timesteps.iter().find(|timestep| **timestep >= self.len());
        if timesteps.len() != samples || unknown.is_some() {
            let problem = format!("timesteps {timesteps:?} of {} for {samples} samples", self.len());
            return Err(TensorError::Shape { op: "noise schedule", problem });
        }
        let numbers: Vec<f64> = timesteps.iter().map(|timestep| of(self.alphas_cumprod[*timestep])).collect();
        per_sample(tape, &numbers, like)
    }
}

/// Makes a constant with a number for each sample, which broadcasts over the elements of `like`.
///
/// # Errors
/// If memory cannot be allocated.
pub fn per_sample(tape: &Tape, numbers: &[f64], like: &Value) -> Result<Value> {
    let mut dims = vec![1; like.dims().len().max(1)];
    dims[0] = numbers.len();
    let dtype = match like.dtype()? {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let tensor = Tensor::from_slice(numbers, dims, &Device::Cpu)?.to_dtype(dtype)?;
    Ok(Value::constant(tape.backend().from_host(&tensor)?))
}
