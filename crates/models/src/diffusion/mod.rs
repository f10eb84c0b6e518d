//! Diffusion: images from noise, step by step (Ho et al. 2020), in pixels or in an autoencoder's latent images.
//!
//! - [`UNet2DConditionModel`] and [`UNet2DModel`] predict noise or velocity, with a text and without; [`AutoencoderKL`]
//!   makes latent images and pixels of each other. Architectures and parameter names are the diffusers library's.
//! - [`NoiseSchedule`] says how much noise an image has at a timestep, and what a network is asked for ([`Prediction`]).
//! - [`Objective`] makes what is learnt of images: noisy ones, and what is to be told from them.
//! - [`samplers`] know the steps from noise to an image, and [`SamplingLoop`] takes them, also from an image that is there.

mod layers;
mod unet;

mod autoencoder_kl;

pub mod schedule;

mod objective;

pub mod samplers;

mod sampling;

pub use autoencoder_kl::{AutoencoderKL, AutoencoderKLConfig, LatentDistribution};
pub use objective::{NoisySamples, Objective};
pub use sampling::{InitialImages, SamplingLoop, latent_mask};
pub use schedule::{BetaSchedule, NoiseSchedule, Prediction};
pub use unet::{TextCondition, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig, UNet2DModel};
