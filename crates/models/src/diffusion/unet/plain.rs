//! The U-Net without a text.

use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::UNet2DConfig;
use super::trunk::{Trunk, TrunkInput};
use crate::diffusion::layers::{Attention, AttentionConfig};

/// A U-Net conditioned on the time alone, with the parameter names of diffusers' `UNet2DModel`.
#[derive(Debug, Clone)]
pub struct UNet2DModel {
    config: UNet2DConfig,
    trunk: Trunk,
}

impl UNet2DModel {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, groups or heads do not divide widths, or the numbers of levels differ.
    pub fn new(scope: &Scope, config: &UNet2DConfig) -> Result<Self> {
        let attend = |scope: &Scope, channels: usize, _| -> Result<Arc<dyn Block>> {
            let heads = config.attention_head_dim.map_or(1, |width| channels / width.max(1));
            let (groups, eps, zero_init) = (config.norm_num_groups, config.norm_eps, config.zero_init);
            Ok(Arc::new(Attention::new(scope, AttentionConfig { channels, heads, groups, eps, zero_init })?))
        };
        Ok(Self { trunk: Trunk::new(scope, config.clone(), None, attend)?, config: config.clone() })
    }

    /// Returns the settings.
    pub fn config(&self) -> &UNet2DConfig {
        &self.config
    }

    /// Returns every block in the order of execution. They are not a sequence: residual blocks also take the embedded
    /// time and, on the way up, a skip connection.
    pub fn blocks(&self) -> Vec<Arc<dyn Block>> {
        self.trunk.blocks()
    }

    /// Computes the prediction for noisy images at timesteps.
    ///
    /// # Shapes
    /// `sample` [N, in_channels, H, W], `timesteps` one for each sample or one for all. The result is [N, out_channels,
    /// H, W].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward(&self, tape: &Tape, sample: &Value, timesteps: &[f64]) -> Result<Value> {
        self.forward_watched(tape, sample, timesteps, &mut |_, _| {})
    }

    /// Like [`UNet2DModel::forward`], and passes intermediate values to `watch`, with the names of their modules in
    /// diffusers.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward_watched(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        watch: &mut dyn FnMut(&str, &Value),
    ) -> Result<Value> {
        self.trunk.forward(tape, TrunkInput { sample, timesteps, text: None, feature: None }, watch)
    }
}
