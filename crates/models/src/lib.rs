//! Models as single-device code, with the parameter names of the reference implementations.
//!
//! A model registers its parameters in a [`phalanx_tensor::Scope`] and runs forward on a [`phalanx_tensor::Tape`]. It
//! knows no ranks, no files and no progress bars. Parallelism is applied from outside, by observing the blocks of a
//! model: stem, residual blocks, transformer layers, heads.
//!
//! `blocks()` of a model returns its [`phalanx_tensor::Block`]s in the order of execution, so that a model can be cut
//! between two of them. In a *sequence* each block takes and returns one value, and running the blocks in order is
//! forward. [`ResNet`], [`MobileNetV2`], [`VisionTransformer`], [`Mlp`], [`ImageTower`] and [`ClipTextEncoder`] are sequences (the last block of
//! the text encoder also takes the positions of the ends of texts). Skip connections lie within blocks. Other models:
//!
//! - Each block of [`Cvae`]'s encoder and decoder also takes the text. The latent distribution is sampled between the
//!   two, so there are two sequences.
//! - [`StageOneGenerator`] has a sequence behind the sampling of its condition. StackGAN's second generator and its
//!   discriminators join image features with a condition, so they have none.
//! - The encoder and decoder of [`diffusion::AutoencoderKL`] are sequences. The blocks of the U-Nets also take skip
//!   connections and the time.
//!
//! Forward and loss are separate: `forward` returns outputs, and a loss is a function of these (`loss` of [`ClipOutput`]
//! and [`CvaeOutput`], [`stackgan::GanObjective`], or any of [`phalanx_tensor::loss`]).
//!
//! - [`ResNet`] (18, 34, 50, 101) and [`MobileNetV2`]: torchvision's architectures and names, with an optional stem for
//!   small images. [`VisionTransformer`]: torchvision's, with any sizes.
//!   [`foreign_names`] has the names that other programs give to their parameters.
//! - [`Mlp`]: fully connected layers of any width and number, to try strategies on.
//! - [`ClipTextEncoder`]: openai/CLIP's text transformer. [`Clip`] trains a small one from scratch with an [`ImageTower`]
//!   by the contrastive loss.
//! - [`Gpt2`]: the language model of openai's GPT-2, with transformers' names.
//! - [`Decoder`]: Llama 2 and 3, Qwen2, Qwen3 and Mixtral from their `config.json`, with transformers' names.
//! - [`Bert`]: the encoder of texts; [`BertMasked`] restores masked tokens, [`BertClassifier`] classifies.
//! - [`Translator`]: encoder and decoder of published Marian models, or of `torch.nn.Transformer`.
//! - [`generate`] continues texts with a [`LanguageModel`] and its [`KeyValueCache`], and [`beam_search`] finds probable
//!   continuations.
//! - [`Cvae`]: a conditional variational autoencoder of images whose encoder and decoder both see a text vector.
//!   [`TextToImage`] joins it with a text encoder.
//! - [`diffusion`]: diffusers' U-Nets and KL autoencoder, noise schedules and samplers.
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

pub mod bert;
mod cache;
pub mod clip;
pub mod cvae;
pub mod decoder;
pub mod diffusion;
mod feed_forward;
pub mod foreign_names;
pub mod generation;
pub mod gpt2;
mod language_model;
pub mod mlp;
pub mod mobilenet_v2;
pub mod resnet;
pub mod stackgan;
pub mod translation;
pub mod vit;

mod conv_norm;
mod names;
mod paired_layers;
mod projected_attention;
mod published_config;
mod routed_states;
mod run_block;
mod token_head;
mod token_input;

pub use bert::{Bert, BertClassifier, BertConfig, BertMasked, EncoderInput};
pub use cache::KeyValueCache;
pub use clip::{
    Clip, ClipOutput, ClipTextConfig, ClipTextEncoder, ImageTower, ImageTowerConfig, TextFeatures,
};
pub use cvae::{Cvae, CvaeConfig, CvaeLoss, CvaeOutput, KlWarmup, L1Sharpening, TextToImage};
pub use decoder::{Decoder, DecoderConfig, ExpertsConfig, RotaryConfig, RotaryScaling, YarnScaling};
pub use feed_forward::FeedForwardActivation;
pub use generation::{Beam, BeamOptions, GenerationOptions, Prompt, Sampling, beam_search, generate};
pub use gpt2::{Gpt2, Gpt2Config};
pub use language_model::LanguageModel;
pub use mlp::{Mlp, MlpConfig};
pub use mobilenet_v2::{MobileNetV2, MobileNetV2Config};
pub use published_config::PublishedConfigError;
pub use resnet::{ResNet, ResNetConfig, ResNetVariant};
pub use routed_states::RoutedStates;
pub use stackgan::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
pub use token_input::TokenInput;
pub use translation::{
    SourceTexts, TranslationConfig, TranslationLayout, TranslationSource, TranslationTokens, Translator,
};
pub use vit::{VisionTransformer, VisionTransformerConfig};

/// Returns the number of groups of a group norm over `channels`: the largest divisor up to 8.
fn groups_for(channels: usize) -> usize {
    (1..=8).rev().find(|groups| channels.is_multiple_of(*groups)).unwrap_or(1)
}

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
