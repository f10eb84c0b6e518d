//! The walk from noise to images.

use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::samplers::{Denoised, Sampler};

/// Images that a walk begins from, instead of pure noise.
#[derive(Debug, Clone)]
pub struct InitialImages {
    /// The images [N, C, H, W], as the network knows them: pixels, or scaled latent images.
    pub images: Value,
    /// How much of the walk is gone: 1 all of it, 0 nothing.
    pub strength: f64,
    /// 1 for what is drawn and 0 for what stays, of a shape that broadcasts to the images'; nothing draws all.
    pub mask: Option<Value>,
}

/// A walk of samples from noise to images.
#[derive(Debug)]
pub struct SamplingLoop<'w> {
    /// Whose steps are taken.
    pub sampler: &'w mut dyn Sampler,
    /// Standard normal noise [N, C, H, W] to begin with.
    pub noise: Value,
    /// What else to begin with.
    pub initial: Option<InitialImages>,
}

impl SamplingLoop<'_> {
    /// Takes all steps and gives the images. `predict` is the network: it gets samples and a timestep. `noise` draws
    /// that of a step. `watch` sees what each step has led to, with its number among those that are taken and how many
    /// these are.
    ///
    /// Where a mask says that something stays, it is put back after each step with as much noise as the samples have then
    /// (Lugmayr et al. 2022, without their resampling), and without any after the last.
    ///
    /// # Errors
    /// Those of the network, and if shapes differ or the strength is not in [0, 1].
    pub fn run(
        self,
        tape: &Tape,
        predict: &mut dyn FnMut(&Value, f64) -> Result<Value>,
        noise: &mut dyn FnMut(usize) -> Result<Value>,
        watch: &mut dyn FnMut(usize, usize, &Denoised) -> Result<()>,
    ) -> Result<Value> {
        let Self { sampler, noise: first, initial } = self;
        let steps = sampler.timesteps().len();
        let (begin, mut x) = match &initial {
            None => (0, ops::scale(tape, &first, sampler.init_noise_sigma())?),
            Some(known) => {
                if !(0.0..=1.0).contains(&initial.strength) {
                    let (value, expected) = (known.strength.to_string(), "expected 0 to 1");
                    return Err(TensorError::Argument { name: "strength", value, expected });
                }
                let taken = ((steps as f64 * known.strength).round() as usize).min(steps);
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
                // kept + mask·(drawn − kept)
                let change = ops::broadcast_mul(tape, &ops::sub(tape, &x, &kept)?, mask)?;
                x = ops::add(tape, &kept, &change)?;
            }
            watch(at - begin, steps - begin, &denoised)?;
        }
        Ok(x)
    }
}

/// A mask of pixels [1, 1, H, W] as one of latent images that are `factor` times smaller: what is drawn of any pixel is
/// drawn.
///
/// # Errors
/// If the sides are no multiples of `factor`.
pub fn latent_mask(tape: &Tape, mask: &Value, factor: usize) -> Result<Value> {
    match factor {
        1 => Ok(mask.clone()),
        _ => ops::max_pool2d(tape, mask, ops::PoolOptions::new(factor, factor, 0)),
    }
}
