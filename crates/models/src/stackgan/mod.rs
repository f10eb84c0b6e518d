//! StackGAN (Zhang et al. 2017): images from a text vector in two stages, after the authors' PyTorch code
//! (hanzhanggit/StackGAN-Pytorch); parameter names equal its state dicts.
//!
//! Stage I: the conditioning augmentation draws the condition from a normal distribution that the text vector decides, and the
//! generator makes a small image of it and of noise. Stage II: a generator reads that image and the text once more and makes an
//! image of a multiple of its size. Each stage has a discriminator that judges image and condition together; that of the second
//! judges the image alone as well.
//!
//! The code's sizes are 64×64 and 256×256 pixels; here they are settings, and as many halvings and doublings are there as a size
//! takes. In the code the second generator's state dict holds the first one under `STAGE1_G.`; here they are two models.

mod conditioning;
mod layers;

mod discriminator;
mod stage_one;
mod stage_two;

mod losses;

pub use conditioning::{Condition, ConditioningAugmentation};
pub use discriminator::Discriminator;
pub use losses::{
    DiscriminatorLosses, GeneratorLosses, SampleWeights, conditions_of_next, discriminator_loss,
    generator_loss,
};
pub use stage_one::{Generated, StageOneGenerator};
pub use stage_two::StageTwoGenerator;

use phalanx_tensor::nn::BatchNormConfig;
use phalanx_tensor::{Init, Result, TensorError};

/// The sizes of a StackGAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGanConfig {
    /// Elements of a text vector.
    pub text_dim: usize,
    /// Elements of a condition.
    pub condition_dim: usize,
    /// Elements of the noise.
    pub z_dim: usize,
    /// The generators' width: the first maps of stage I have 8 times as many channels, those that stage II joins with the
    /// condition 4 times as many.
    pub gf_dim: usize,
    /// The discriminators' width: their first maps have as many channels, their last at most 8 times as many.
    pub df_dim: usize,
    /// Residual blocks of stage II's generator (`R_NUM`).
    pub residual_blocks: usize,
    /// Height and width of the images of stage I: 4 times a power of two, at least 8.
    pub stage_one_size: usize,
    /// Height and width of the images of stage II: a power of two times those of stage I, at least twice.
    pub stage_two_size: usize,
    /// Whether batch norm uses the statistics of the batches of all ranks.
    pub sync_batch_norm: bool,
}

impl StackGanConfig {
    /// The code's defaults: text vectors of 1024 elements, GF 128, DF 64, 4 residual blocks, 64 and 256 pixels.
    pub fn new() -> Self {
        Self {
            text_dim: 1024,
            condition_dim: 128,
            z_dim: 100,
            gf_dim: 128,
            df_dim: 64,
            residual_blocks: 4,
            stage_one_size: 64,
            stage_two_size: 256,
            sync_batch_norm: false,
        }
    }

    /// What batch norms are like.
    fn norms(&self) -> BatchNormConfig {
        BatchNormConfig { sync: self.sync_batch_norm, ..BatchNormConfig::default() }
    }
}

impl Default for StackGanConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// How many doublings lie between two sizes of images.
fn doublings(what: &'static str, from: usize, to: usize) -> Result<usize> {
    let factor = to / from.max(1);
    if from == 0 || factor < 2 || factor * from != to || !factor.is_power_of_two() {
        let problem = format!("the size {to} is not {from} doubled once or several times");
        return Err(TensorError::Shape { op: what, problem });
    }
    Ok(factor.ilog2() as usize)
}

/// How convolutions and fully connected layers begin.
const WEIGHT: Init = Init::Normal { mean: 0.0, std: 0.02 };

/// How norms' weights begin.
const NORM_WEIGHT: Init = Init::Normal { mean: 1.0, std: 0.02 };

/// The discriminators' slope for negative numbers.
const SLOPE: f64 = 0.2;
