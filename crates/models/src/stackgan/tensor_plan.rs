//! The plans by which the networks of a StackGAN can be cut over ranks: convolutions in pairs, of which the first is cut by its outputs,
//! with its norm, and the second by its inputs.

use phalanx_tensor::{Result, TensorPlan};

use super::discriminator::encoder_layers;
use super::{StackGanConfig, doublings};
use crate::paired_layers::{PairedLayer, rules_of_pairs};

/// The convolutions at the start of the second stage's generator.
const ENCODER_LAYERS: usize = 3;

impl StackGanConfig {
    /// Returns the plan of the first stage's generator.
    ///
    /// # Errors
    /// If the image size is not 4 times a power of two.
    pub fn stage_one_plan(&self) -> Result<TensorPlan> {
        plan(&upsampling(doublings("StackGAN's stage I", 4, self.stage_one_size)?))
    }

    /// Returns the plan of the second stage's generator.
    ///
    /// # Errors
    /// If an image size is not a smaller one times a power of two.
    pub fn stage_two_plan(&self) -> Result<TensorPlan> {
        let up = doublings("StackGAN's stage II", self.stage_one_size / 4, self.stage_two_size)?;
        let encoder = plan(&sequence("*encoder", ENCODER_LAYERS))?.and(plan(&upsampling(up))?);
        encoder.with_rules([
            "*residual.*.block.0 = column",
            "*residual.*.block.1 = column",
            "*residual.*.block.3 = row",
        ])
    }

    /// Returns the plan of the discriminator of images of this size.
    ///
    /// # Errors
    /// If the size is not 4 times a power of two.
    pub fn discriminator_plan(&self, size: usize) -> Result<TensorPlan> {
        let encoder = plan(&sequence("*encode_img", encoder_layers(self, size)?.len()))?;
        encoder.with_rules([
            "*get_cond_logits.outlogits.0 = column",
            "*get_cond_logits.outlogits.1 = column",
            "*get_cond_logits.outlogits.3 = row",
        ])
    }
}

fn plan(layers: &[PairedLayer]) -> Result<TensorPlan> {
    TensorPlan::new(rules_of_pairs(layers).iter().map(String::as_str))
}

/// The convolutions of the end of a generator.
fn upsampling(doublings: usize) -> Vec<PairedLayer> {
    let up = (1..=doublings)
        .map(|index| PairedLayer::with_norm(format!("*upsample{index}.1"), &format!("*upsample{index}.2")));
    up.chain([PairedLayer { layer: "*img.0".to_owned(), behind: Vec::new() }]).collect()
}

/// The convolutions of a sequence: the first has no norm.
fn sequence(scope: &str, count: usize) -> Vec<PairedLayer> {
    let layer = |index: usize| match index {
        0 => PairedLayer { layer: format!("{scope}.0"), behind: Vec::new() },
        _ => {
            let position = 3 * index - 1;
            PairedLayer::with_norm(format!("{scope}.{position}"), &format!("{scope}.{}", position + 1))
        }
    };
    (0..count).map(layer).collect()
}
