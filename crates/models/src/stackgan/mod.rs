//! StackGAN (Zhang et al. 2017): images from a text vector in two stages, after the authors' PyTorch code
//! (hanzhanggit/StackGAN-Pytorch). Parameter names equal its state dicts.
//!
//! Stage I: the conditioning augmentation samples a condition from a normal distribution that depends on the text
//! vector. The generator makes a small image from the condition and noise. Stage II: a generator takes that image and
//! the text again and makes a larger image. Each stage has a discriminator of image and condition; the second one also
//! judges the image alone.
//!
//! The authors' sizes are 64×64 and 256×256 pixels; here they are settings that determine the number of halvings and
//! doublings. In the authors' code the second generator's state dict contains the first under `STAGE1_G.`; here they
//! are two models.

mod conditioning;
mod layers;

mod discriminator;
mod stage_one;
mod stage_two;

mod losses;
mod tensor_plan;

pub use conditioning::{Condition, ConditioningActivation, ConditioningAugmentation};
pub use discriminator::Discriminator;
pub use losses::{
    AdversarialLoss, DiscriminatorLosses, GanObjective, GeneratorLosses, SampleWeights, conditions_of_next,
};
pub use stage_one::{GeneratorOutput, StageOneGenerator};
pub use stage_two::StageTwoGenerator;

use phalanx_tensor::nn::BatchNormConfig;
use phalanx_tensor::{Init, Result, TensorError};

/// The sizes of a StackGAN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackGanConfig {
    /// The number of elements of a text vector.
    pub text_dim: usize,
    /// The number of elements of a condition.
    pub condition_dim: usize,
    /// The activation of the layer that computes the distribution of conditions.
    pub conditioning: ConditioningActivation,
    /// The number of elements of the noise.
    pub z_dim: usize,
    /// The generators' width. The first feature maps of stage I have 8 times as many channels. The feature maps that
    /// stage II joins with the condition have 4 times as many.
    pub gf_dim: usize,
    /// The discriminators' width: their first feature maps have as many channels, their last at most 8 times as many.
    pub df_dim: usize,
    /// The residual blocks of stage II's generator (`R_NUM`).
    pub residual_blocks: usize,
    /// Height and width of the images of stage I: 4 times a power of two, at least 8.
    pub stage_one_size: usize,
    /// Height and width of the images of stage II: a power of two times those of stage I, at least twice.
    pub stage_two_size: usize,
    /// Computes batch statistics over all ranks.
    pub sync_batch_norm: bool,
}

impl StackGanConfig {
    /// Returns the authors' defaults: text vectors of 1024 elements, GF 128, DF 64, 4 residual blocks, 64 and 256
    /// pixels.
    pub fn new() -> Self {
        Self {
            text_dim: 1024,
            condition_dim: 128,
            conditioning: ConditioningActivation::Relu,
            z_dim: 100,
            gf_dim: 128,
            df_dim: 64,
            residual_blocks: 4,
            stage_one_size: 64,
            stage_two_size: 256,
            sync_batch_norm: false,
        }
    }

    /// Returns the settings of batch norms.
    fn norms(&self) -> BatchNormConfig {
        BatchNormConfig { sync: self.sync_batch_norm, ..BatchNormConfig::default() }
    }
}

impl Default for StackGanConfig {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the number of doublings between two image sizes.
fn doublings(what: &'static str, from: usize, to: usize) -> Result<usize> {
    let factor = to / from.max(1);
    if from == 0 || factor < 2 || factor * from != to || !factor.is_power_of_two() {
        let problem = format!("the size {to} is not {from} doubled once or several times");
        return Err(TensorError::Shape { op: what, problem });
    }
    Ok(factor.ilog2() as usize)
}

/// The initial weights of convolutions and fully connected layers.
const WEIGHT: Init = Init::Normal { mean: 0.0, std: 0.02 };

/// The initial weights of norms.
const NORM_WEIGHT: Init = Init::Normal { mean: 1.0, std: 0.02 };

/// The negative slope of the discriminators' leaky ReLU.
const SLOPE: f64 = 0.2;
