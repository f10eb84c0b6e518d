//! The settings of the U-Net without text, also used by the trunk.

/// The settings of a [`UNet2DModel`](super::UNet2DModel), under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct UNet2DConfig {
    /// The channels of the noisy images.
    pub in_channels: usize,
    /// The channels of the prediction.
    pub out_channels: usize,
    /// The channels of each level, from full size inwards; each further level has half the size.
    pub block_out_channels: Vec<usize>,
    /// The levels with attention after their residual blocks, downwards and upwards. The middle always has attention.
    pub attention: Vec<bool>,
    /// The residual blocks of each level on the way down; the way up has one more.
    pub layers_per_block: usize,
    /// The groups of each group norm.
    pub norm_num_groups: usize,
    /// The constant added to the variance in norms.
    pub norm_eps: f64,
    /// The width of an attention head; `None` for one head of all channels, as in DDPM.
    pub attention_head_dim: Option<usize>,
    /// Puts the cosines of the time embedding before the sines.
    pub flip_sin_to_cos: bool,
    /// The number subtracted from the number of frequencies in their exponents.
    pub freq_shift: f64,
    /// The zero padding on each side when an image is halved; 0 pads one at the right and the bottom.
    pub downsample_padding: usize,
    /// The dropout probability of residual blocks.
    pub dropout: f64,
    /// Starts the last layer of each residual branch and of the network at zero, as in DDPM; diffusers initialises them
    /// like the rest.
    pub zero_init: bool,
}

impl UNet2DConfig {
    /// Returns settings for small images: 32 and 64 channels, attention at the smaller size.
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

    /// Returns DDPM's settings for CIFAR-10 (Ho et al. 2020; `google/ddpm-cifar10-32`): 35,746,307 parameters.
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
