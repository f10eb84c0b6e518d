//! The U-Net without a text.

use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::{Trunk, TrunkConfig};
use crate::diffusion::layers::{Attention, AttentionConfig};

/// The settings of a [`UNet2DModel`], under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct UNet2DConfig {
    /// Channels of what is denoised.
    pub in_channels: usize,
    /// Channels of the prediction.
    pub out_channels: usize,
    /// Channels of each level, from the whole size inwards; each next level has half the size.
    pub block_out_channels: Vec<usize>,
    /// Which levels attend behind their residual blocks, on both ways; the middle always does.
    pub attention: Vec<bool>,
    /// Residual blocks of a level on the way down; on the way up there is one more.
    pub layers_per_block: usize,
    /// Groups of each group norm.
    pub norm_num_groups: usize,
    /// Added to the variance in norms.
    pub norm_eps: f64,
    /// Width of an attention head; nothing for one head of all channels, as DDPM has it.
    pub attention_head_dim: Option<usize>,
    /// Whether the cosines of the time come before the sines.
    pub flip_sin_to_cos: bool,
    /// What half the number of frequencies is lowered by in their exponents.
    pub freq_shift: f64,
    /// Zeros on each side of an image that is halved; 0 for one at the right and the bottom.
    pub downsample_padding: usize,
    /// Probability of dropping an element in residual blocks.
    pub dropout: f64,
    /// Whether what is added to a way around, and the output, starts at zero, as in DDPM; diffusers starts them like
    /// the rest.
    pub zero_init: bool,
}

impl UNet2DConfig {
    /// One for small pictures: 32 and 64 channels, attention at the smaller size.
    pub fn small(channels: usize) -> Self {
        Self {
            in_channels: channels,
            out_channels: channels,
            block_out_channels: vec![32, 64],
            attention: vec![false, true],
            layers_per_block: 1,
            norm_num_groups: 8,
            norm_eps: 1e-5,
            attention_head_dim: Some(8),
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            downsample_padding: 1,
            dropout: 0.0,
            zero_init: false,
        }
    }

    /// DDPM's for CIFAR-10 (Ho et al. 2020; `google/ddpm-cifar10-32`): 35,746,307 parameters.
    pub fn ddpm_cifar10() -> Self {
        Self {
            block_out_channels: vec![128, 256, 256, 256],
            attention: vec![false, true, false, false],
            layers_per_block: 2,
            norm_num_groups: 32,
            norm_eps: 1e-6,
            attention_head_dim: None,
            flip_sin_to_cos: false,
            freq_shift: 1.0,
            downsample_padding: 0,
            dropout: 0.1,
            zero_init: true,
            ..Self::small(3)
        }
    }
}

/// A U-Net that is told the time and nothing else, with the parameter names of diffusers' `UNet2DModel`.
#[derive(Debug, Clone)]
pub struct UNet2DModel {
    config: UNet2DConfig,
    trunk: Trunk,
}

impl UNet2DModel {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, or sizes do not go together: groups or heads that do not divide widths, numbers of levels
    /// that differ.
    pub fn new(scope: &Scope, config: &UNet2DConfig) -> Result<Self> {
        let trunk = TrunkConfig {
            in_channels: config.in_channels,
            out_channels: config.out_channels,
            block_out_channels: config.block_out_channels.clone(),
            attention: config.attention.clone(),
            layers_per_block: config.layers_per_block,
            norm_num_groups: config.norm_num_groups,
            norm_eps: config.norm_eps,
            flip_sin_to_cos: config.flip_sin_to_cos,
            freq_shift: config.freq_shift,
            downsample_padding: config.downsample_padding,
            dropout: config.dropout,
            zero_init: config.zero_init,
            class: None,
        };
        let attend = |scope: &Scope, channels: usize, _| -> Result<Arc<dyn Block>> {
            let heads = config.attention_head_dim.map_or(1, |width| channels / width.max(1));
            let (groups, eps, zero_init) = (config.norm_num_groups, config.norm_eps, config.zero_init);
            Ok(Arc::new(Attention::new(scope, AttentionConfig { channels, heads, groups, eps, zero_init })?))
        };
        Ok(Self { trunk: Trunk::new(scope, trunk, attend)?, config: config.clone() })
    }

    /// The settings.
    pub fn config(&self) -> &UNet2DConfig {
        &self.config
    }

    /// Every block in the order in which they run. They are no sequence: residual blocks take the embedded time, and
    /// those on the way up a skip as well.
    pub fn blocks(&self) -> Vec<Arc<dyn Block>> {
        self.trunk.blocks()
    }

    /// The prediction for noisy images at timesteps.
    ///
    /// # Shapes
    /// `sample` [N, in_channels, H, W], `timesteps` one for each sample or one for all; the result is [N, out_channels,
    /// H, W].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward(&self, tape: &Tape, sample: &Value, timesteps: &[f64]) -> Result<Value> {
        self.forward_watched(tape, sample, timesteps, &mut |_, _| {})
    }

    /// [`UNet2DModel::forward`], telling `watch` the values on the way by the names that their makers have in diffusers.
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
        self.trunk.forward(tape, (sample, timesteps), (None, None), watch)
    }
}
