//! The blocks of the U-Nets and autoencoders of the diffusers library, with its names.
//!
//! Each is a [`phalanx_tensor::Block`], named by the prefix of its parameters: a residual block, an attention, a
//! resampling, a first or last convolution. Images are [N, C, H, W].

mod attention;
mod convolutions;
mod resample;
mod resnet;
mod time;
mod transformer;

pub(super) use attention::{Attention, AttentionConfig};
pub(super) use convolutions::{Convolution, NormAndConvolution};
pub(super) use resample::{Downsample2D, Upsample2D};
pub(super) use resnet::{ResnetBlock2D, ResnetConfig};
pub(super) use time::{ClassEmbedding, TimeEmbedding, sinusoids};
pub(super) use transformer::{TextShares, Transformer2D, TransformerConfig};

use phalanx_tensor::nn::{Conv2d, Linear};
use phalanx_tensor::ops::Conv2dOptions;
use phalanx_tensor::{Init, Result, Scope};

/// Registers a convolution that starts at zero if `zero`, and otherwise like PyTorch's.
fn conv(
    scope: &Scope,
    (inputs, outputs, kernel): (usize, usize, usize),
    options: Conv2dOptions,
    zero: bool,
) -> Result<Conv2d> {
    match zero {
        true => {
            let none = Some(Init::ZEROS);
            Conv2d::with_init(scope, inputs, outputs, kernel, options, Init::ZEROS, none)
        }
        false => Conv2d::new(scope, inputs, outputs, kernel, options),
    }
}

/// Registers a fully connected layer that starts at zero if `zero`, and otherwise like PyTorch's.
fn linear(scope: &Scope, inputs: usize, outputs: usize, zero: bool) -> Result<Linear> {
    match zero {
        true => Linear::with_init(scope, inputs, outputs, Init::ZEROS, Some(Init::ZEROS)),
        false => Linear::new(scope, inputs, outputs),
    }
}
