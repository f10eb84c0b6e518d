//! The sampling loop, from noise to images.

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::samplers::{Sampler, SamplerOutput};

/// Images from which sampling starts, instead of pure noise.
#[derive(Debug, Clone)]
pub struct InitialImages {
    /// The images [N, C, H, W] in the space of the network: pixels, or scaled latent images.
    pub images: Value,
    /// The fraction of the steps that are run: 1 for all, 0 for none.
    pub strength: f64,
    /// 1 for elements to generate and 0 for elements to keep, in a shape that broadcasts to the images; `None`
    /// generates all.
    pub mask: Option<Value>,
}

/// A sampling run from noise to images.
#[derive(Debug)]
pub struct SamplingLoop<'w> {
    /// The sampler.
    pub sampler: &'w mut dyn Sampler,
    /// The initial standard normal noise [N, C, H, W].
    pub noise: Value,
    /// The initial images, if any.
    pub initial: Option<InitialImages>,
}

impl SamplingLoop<'_> {
    /// Runs all steps and returns the images. `predict` is the network: it takes samples and a timestep. `noise`
    /// returns the noise of a step. `watch` sees the result of each step, with its number among the steps that are run
    /// and their count.
    ///
    /// Masked elements are restored after each step with the noise of the samples at that step (Lugmayr et al. 2022,
    /// without resampling), and without noise after the last step.
    ///
    /// # Errors
    /// If the network fails, the shapes differ, or the strength is not in [0, 1].
    pub fn run(
        self,
        tape: &Tape,
        predict: &mut dyn FnMut(&Value, f64) -> Result<Value>,
        noise: &mut dyn FnMut(usize) -> Result<Value>,
        watch: &mut dyn FnMut(usize, usize, &SamplerOutput) -> Result<()>,
    ) -> Result<Value> {
        let Self { sampler, noise: first, initial } = self;
        let steps = sampler.timesteps().len();
        let (begin, mut x) = match &initial {
            None => (0, ops::scale(tape, &first, sampler.init_noise_sigma())?),
            Some(initial) => {
                if !(0.0..=1.0).contains(&initial.strength) {
                    let (value, expected) = (initial.strength.to_string(), "expected 0 to 1");
                    return Err(TensorError::Argument { name: "strength", value, expected });
                }
                let taken = ((steps as f64 * initial.strength).round() as usize).min(steps);
                (steps - taken, sampler.add_noise(tape, &initial.images, &first, steps - taken)?)
            }
        };
        for at in begin..steps {
            let timestep = sampler.timesteps()[at];
            let output = predict(&sampler.scale_model_input(tape, &x, at)?, timestep)?;
            let denoised = sampler.step(tape, &x, &output, at, &mut || noise(at))?;
            x = denoised.sample.clone();
            if let Some(InitialImages { images, mask: Some(mask), .. }) = &initial {
                let kept = match at + 1 == steps {
                    true => images.clone(),
                    false => sampler.add_noise(tape, images, &first, at + 1)?,
                };
                // kept + mask·(x − kept)
                let change = ops::broadcast_mul(tape, &ops::sub(tape, &x, &kept)?, mask)?;
                x = ops::add(tape, &kept, &change)?;
            }
            watch(at - begin, steps - begin, &denoised)?;
        }
        Ok(x)
    }
}

/// Converts a mask of pixels [1, 1, H, W] to one of latent images that are `factor` times smaller. A latent pixel is
/// generated if any of its pixels is.
///
/// # Errors
/// If the sides are not multiples of `factor`.
pub fn latent_mask(tape: &Tape, mask: &Value, factor: usize) -> Result<Value> {
    match factor {
        1 => Ok(mask.clone()),
        _ => ops::max_pool2d(tape, mask, ops::PoolOptions::new(factor, factor, 0)),
    }
}
