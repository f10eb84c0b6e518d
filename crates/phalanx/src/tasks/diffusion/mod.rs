//! Diffusion, in pixels or in the latent images of a first stage, with text and without.
//!
//! The first stage is a network that is not learnt: the autoencoder of a run that is there or that `phalanx train` trains
//! before. What it makes of images is scaled to a standard deviation of 1, which is measured once, on the first batch, and
//! kept with the weights.

mod denoiser;
mod drawing;
mod explaining;
mod first_stage;
mod kept_latents;
mod settings;
mod training;

pub(super) use training::spec;

use denoiser::Denoiser;
use first_stage::FirstStage;
use kept_latents::KeptLatents;
use settings::DiffusionSettings;
