//! Diffusion models: images from noise, step by step (Ho et al. 2020), in pixels or in an autoencoder's latent images.
//!
//! - [`UNet2DConditionModel`] and [`UNet2DModel`] predict noise or velocity, with and without a text. [`AutoencoderKL`]
//!   converts between pixels and latent images. Architectures and parameter names are those of the diffusers library.
//! - [`NoiseSchedule`] is the amount of noise at each timestep; [`Prediction`] is the target of a network.
//! - [`Objective`] makes noisy samples and targets from images.
//! - [`samplers`] define the steps from noise to an image; [`SamplingLoop`] runs them, also from given images.

mod layers;
mod unet;

mod autoencoder_kl;

mod coordinates;

pub mod schedule;

mod objective;

mod patches;

pub mod samplers;

mod sampling;

mod tensor_plan;

mod uncertainty;

pub use autoencoder_kl::{AutoencoderKL, AutoencoderKLConfig, LatentDistribution};
pub use coordinates::{COORDINATES, with_coordinates};
pub use objective::{NoisySamples, Objective};
pub use patches::{from_patches, to_patches};
pub use sampling::{InitialImages, SamplingLoop, latent_mask};
pub use schedule::{BetaSchedule, NoiseSchedule, Prediction};
pub use tensor_plan::tensor_plan;
pub use uncertainty::Uncertainty;
pub use unet::{
    TextAttention, TextCondition, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig, UNet2DModel,
};
