//! Models as single-device code, with the parameter names of the reference implementations.
//!
//! A model registers its parameters in a [`phalanx_tensor::Scope`] and runs forward on a
//! [`phalanx_tensor::Tape`]. It knows no ranks, no files and no progress bars: whatever distributes it does so
//! from outside, by listening to its blocks (stem, residual blocks, transformer layers, heads).
//!
//! - [`ResNet`] (18, 34, 50) and [`MobileNetV2`]: torchvision's architectures and names, with an optional stem
//!   for small images.
//! - [`Mlp`]: fully connected layers of any width and number, to try strategies on.
//! - [`ClipTextEncoder`]: openai/CLIP's text transformer; [`Clip`] trains a small one from scratch with an
//!   [`ImageTower`] by the contrastive loss.
//! - [`Cvae`]: a conditional variational autoencoder of images whose encoder and decoder both see a text
//!   vector; [`TextToImage`] joins it with a text encoder.
//! - [`StageOneGenerator`] and [`StageOneDiscriminator`]: StackGAN's first stage.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//! use candle_core::{DType, Device, Tensor};
//! use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};
//! use phalanx_tensor::{BuildOptions, Context, Session, StoreBuilder, Tape, Value};
//!
//! # fn main() -> Result<(), phalanx_tensor::TensorError> {
//! let builder = StoreBuilder::new(BuildOptions::default());
//! let config = ResNetConfig { cifar_stem: true, width: 8, ..ResNetConfig::new(ResNetVariant::R18, 10) };
//! let model = ResNet::new(&builder.root(), &config)?;
//! let store = builder.build()?;
//! assert!(store.param("layer1.0.conv1.weight").is_ok());
//!
//! let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
//! let images = Value::constant(Tensor::zeros((2, 3, 32, 32), DType::F32, &Device::Cpu)?);
//! assert_eq!(model.forward(&tape, &images)?.dims(), [2, 10]);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

pub mod clip;
pub mod cvae;
pub mod mlp;
pub mod mobilenet_v2;
pub mod resnet;
pub mod stackgan;

pub use clip::{
    Clip, ClipOutput, ClipTextConfig, ClipTextEncoder, ImageTower, ImageTowerConfig, TextFeatures,
};
pub use cvae::{Cvae, CvaeConfig, CvaeOutput, KlWarmup, L1Sharpening, TextToImage, TextToImageLoss};
pub use mlp::{Mlp, MlpConfig};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Config};
pub use resnet::{ResNet, ResNetConfig, ResNetVariant};
pub use stackgan::{StackGanConfig, StageOneDiscriminator, StageOneGenerator};

/// The number of groups of a group norm over `channels`: at most 8, and a divisor.
fn groups_for(channels: usize) -> usize {
    (1..=8).rev().find(|groups| channels.is_multiple_of(*groups)).unwrap_or(1)
}

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
