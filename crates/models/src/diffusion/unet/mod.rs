//! The U-Nets of diffusion models (Ronneberger et al. 2015, Ho et al. 2020), with and without a text.
//!
//! Both have the same trunk: a first convolution, levels that halve the size, a middle, levels that double the size and
//! take skip connections from the way down, and a last convolution. They differ in their attention: the spatial
//! transformers of [`UNet2DConditionModel`] also attend to a text, [`UNet2DModel`] only to the image.

mod config;

mod trunk;

mod condition;
mod plain;

pub use condition::{TextAttention, TextCondition, UNet2DConditionConfig, UNet2DConditionModel};
pub use config::UNet2DConfig;
pub use plain::UNet2DModel;
