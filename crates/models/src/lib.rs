//! Models as single-device code, with the parameter names of the reference implementations.
//!
//! A model registers its parameters in a [`phalanx_tensor::Scope`] and runs forward on a
//! [`phalanx_tensor::Tape`]. It knows no ranks, no files and no progress bars: whatever distributes it does so
//! from outside, by listening to its blocks (stem, residual blocks, transformer layers, heads).
//!
//! `blocks()` of a model gives these as [`phalanx_tensor::Block`]s in the order in which forward runs them, so that a model can be
//! cut between two of them. Where the model is a *sequence*, each block takes the one value that the block before it gave, and
//! running one after the other is forward: so it is for [`ResNet`], [`MobileNetV2`], [`Mlp`], [`ImageTower`], and
//! [`ClipTextEncoder`] (whose last block takes the places of the ends of texts as a second value). A skip lies inside a block,
//! as those of residual blocks do. Each block of [`Cvae`]'s encoder and decoder takes the text beside what the one before gave;
//! between the two lies the draw from the latent distribution, so there are two sequences and not one. [`StageOneGenerator`] has
//! such a sequence behind the draw of its condition; StackGAN's second generator and its discriminators join what they have read
//! of an image with a condition, so that they have none.
//!
//! Forward and loss are apart: `forward` gives outputs, and a loss is a function of these (`loss` of [`ClipOutput`] and
//! [`CvaeOutput`], [`stackgan::generator_loss`], or any of [`phalanx_tensor::loss`]).
//!
//! - [`ResNet`] (18, 34, 50, 101) and [`MobileNetV2`]: torchvision's architectures and names, with an optional stem
//!   for small images.
//! - [`Mlp`]: fully connected layers of any width and number, to try strategies on.
//! - [`ClipTextEncoder`]: openai/CLIP's text transformer; [`Clip`] trains a small one from scratch with an
//!   [`ImageTower`] by the contrastive loss.
//! - [`Cvae`]: a conditional variational autoencoder of images whose encoder and decoder both see a text
//!   vector; [`TextToImage`] joins it with a text encoder.
//! - [`diffusion`]: diffusers' U-Nets and KL autoencoder, noise schedules and samplers. The autoencoder's encoder and decoder
//!   are sequences of blocks; those of the U-Nets take skips and the time beside what the block before gave.
//! - [`StageOneGenerator`], [`StageTwoGenerator`] and [`stackgan::Discriminator`]: StackGAN's two stages.
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
pub mod diffusion;
pub mod mlp;
pub mod mobilenet_v2;
pub mod resnet;
pub mod stackgan;

pub use clip::{
    Clip, ClipOutput, ClipTextConfig, ClipTextEncoder, ImageTower, ImageTowerConfig, TextFeatures,
};
pub use cvae::{Cvae, CvaeConfig, CvaeLoss, CvaeOutput, KlWarmup, L1Sharpening, TextToImage};
pub use mlp::{Mlp, MlpConfig};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Config};
pub use resnet::{ResNet, ResNetConfig, ResNetVariant};
pub use stackgan::{StackGanConfig, StageOneGenerator, StageTwoGenerator};

/// The number of groups of a group norm over `channels`: at most 8, and a divisor.
fn groups_for(channels: usize) -> usize {
    (1..=8).rev().find(|groups| channels.is_multiple_of(*groups)).unwrap_or(1)
}

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
