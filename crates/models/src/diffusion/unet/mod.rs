//! The U-Net that tells noise from images (Ronneberger et al. 2015, Ho et al. 2020), with text and without.
//!
//! Both are a [`Trunk`]: a first convolution, levels that halve the size, a middle, levels that double it and see what
//! the way down has left them (skips), a last convolution. They differ in what looks at what:
//! [`UNet2DConditionModel`]'s spatial transformers also look at a text, [`UNet2DModel`]'s attention at the image alone.

mod condition;
mod plain;
mod trunk;

pub use condition::{TextCondition, UNet2DConditionConfig, UNet2DConditionModel};
pub use plain::{UNet2DConfig, UNet2DModel};

use trunk::{Trunk, TrunkConfig};
