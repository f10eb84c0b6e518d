//! StackGAN's first stage (Zhang et al. 2017): a 64×64 image from a text vector, after the authors' PyTorch code
//! (hanzhanggit/StackGAN-Pytorch); parameter names equal its state dicts.
//!
//! The conditioning augmentation draws the condition from a normal distribution that the text vector decides; the
//! generator makes an image of it and of noise, and the discriminator judges image and condition together.

mod conditioning;
mod discriminator;
mod generator;
mod losses;

pub use conditioning::{Condition, ConditioningAugmentation};
pub use discriminator::StageOneDiscriminator;
pub use generator::{Generated, StageOneGenerator};
pub use losses::{StageOneLosses, stage_one_discriminator_loss, stage_one_generator_loss};

use phalanx_tensor::Init;

/// The sizes of a StackGAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGanConfig {
    /// Elements of a text vector.
    pub text_dim: usize,
    /// Elements of a condition.
    pub condition_dim: usize,
    /// Elements of the noise.
    pub z_dim: usize,
    /// The generator's width: its first maps have 8 times as many channels.
    pub gf_dim: usize,
    /// The discriminator's width: its first maps have as many channels, its last 8 times as many.
    pub df_dim: usize,
}

impl StackGanConfig {
    /// The code's defaults: text vectors of 1024 elements, GF 128, DF 64.
    pub fn new() -> Self {
        Self { text_dim: 1024, condition_dim: 128, z_dim: 100, gf_dim: 128, df_dim: 64 }
    }
}

impl Default for StackGanConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// How convolutions and fully connected layers begin.
const WEIGHT: Init = Init::Normal { mean: 0.0, std: 0.02 };

/// How norms' weights begin.
const NORM_WEIGHT: Init = Init::Normal { mean: 1.0, std: 0.02 };

/// The discriminator's slope for negative numbers.
const SLOPE: f64 = 0.2;
