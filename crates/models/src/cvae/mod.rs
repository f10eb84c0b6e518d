//! A conditional variational autoencoder of images (Sohn et al. 2015) whose encoder and decoder both see a text.
//!
//! The text vector modulates the channels of every stage (FiLM, Perez et al. 2018) and enters the decoder beside
//! the latent vector. Group norm rather than batch norm: a sample's result does not depend on the others of its
//! batch, so any split over ranks gives the same numbers. Up-sampling is nearest-neighbour and a 3×3
//! convolution, which leaves no checkerboards.
//!
//! What the text says should be decided by the text alone, so that a prompt controls the picture. The weight of
//! the divergence sees to that: every nat that the latent vector carries is paid for, what the text already
//! tells is free. Too small a weight, and the latent vector carries the whole picture and the prompt is ignored;
//! too large, and what the text leaves open is averaged to a blur.

mod decoder;
mod encoder;
mod film;
mod joint;

pub use joint::{CvaeLoss, KlWarmup, L1Sharpening, TextToImage};

use decoder::Decoder;
use encoder::Encoder;
use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

/// The settings of a [`Cvae`].
#[derive(Debug, Clone, PartialEq)]
pub struct CvaeConfig {
    /// Height and width of the images: the bottom size times 2 for every width.
    pub image_size: usize,
    /// Channels of the encoder after each halving; the decoder has them in reverse.
    pub widths: Vec<usize>,
    /// Elements of the latent vector.
    pub latent: usize,
    /// Elements of the text vector.
    pub text_dim: usize,
}

impl CvaeConfig {
    /// Size of the smallest map, after all halvings.
    ///
    /// # Errors
    /// If the image size is not that times a power of two.
    fn bottom(&self) -> Result<usize> {
        let factor = 1_usize << self.widths.len();
        if self.widths.is_empty() || !self.image_size.is_multiple_of(factor) || self.image_size == 0 {
            let problem = format!(
                "an image size of {} cannot be halved {} times; expected a multiple of {factor}",
                self.image_size,
                self.widths.len()
            );
            return Err(TensorError::Shape { op: "cvae", problem });
        }
        Ok(self.image_size / factor)
    }
}

/// The outputs of [`Cvae::forward`].
#[derive(Debug, Clone)]
pub struct CvaeOutput {
    /// The reconstruction, [N, 3, S, S]: near [−1, 1], but not cut off there.
    pub reconstruction: Value,
    /// Mean of the latent distribution, [N, Z].
    pub mu: Value,
    /// Logarithm of its variance, [N, Z].
    pub logvar: Value,
}

/// A conditional variational autoencoder.
#[derive(Debug, Clone)]
pub struct Cvae {
    config: CvaeConfig,
    encoder: Encoder,
    decoder: Decoder,
}

impl Cvae {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken or the image size does not fit the stages.
    pub fn new(scope: &Scope, config: &CvaeConfig) -> Result<Self> {
        let bottom = config.bottom()?;
        Ok(Self {
            config: config.clone(),
            encoder: Encoder::new(&scope.pp("encoder"), config, bottom)?,
            decoder: Decoder::new(&scope.pp("decoder"), config, bottom)?,
        })
    }

    /// The settings.
    pub fn config(&self) -> &CvaeConfig {
        &self.config
    }

    /// The encoder's stages and head: each takes what the one before gave (the first the images [N, 3, S, S]) and the text
    /// [N, text_dim]; the last gives mean and logarithm of the variance.
    pub fn encoder_blocks(&self) -> &[Arc<dyn Block>] {
        &self.encoder.blocks
    }

    /// The decoder's entry, stages and exit: each takes what the one before gave (the first a latent vector [N, Z]) and the text
    /// [N, text_dim]; the last gives images.
    pub fn decoder_blocks(&self) -> &[Arc<dyn Block>] {
        &self.decoder.blocks
    }

    /// The latent distribution of images: its mean and the logarithm of its variance, [N, Z] each.
    ///
    /// # Shapes
    /// `images` [N, 3, S, S] in [−1, 1], `text` [N, text_dim].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn encode(&self, tape: &Tape, images: &Value, text: &Value) -> Result<(Value, Value)> {
        self.encoder.forward(tape, images, text)
    }

    /// Images of latent vectors [N, Z] and texts [N, text_dim]: near [−1, 1], but not cut off there.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn decode(&self, tape: &Tape, latent: &Value, text: &Value) -> Result<Value> {
        self.decoder.forward(tape, latent, text)
    }

    /// A draw from the latent distribution, mu + e^(logvar/2)·ε; gradients flow to both.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn reparameterise(tape: &Tape, mu: &Value, logvar: &Value) -> Result<Value> {
        let noise = ops::gaussian_noise(tape, mu.shape().clone(), mu.dtype()?)?;
        let std = ops::exp(tape, &ops::scale(tape, logvar, 0.5)?)?;
        ops::add(tape, mu, &ops::mul(tape, &std, &noise)?)
    }

    /// Encodes, draws and decodes. In evaluation the mean is taken instead of a draw.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward(&self, tape: &Tape, images: &Value, text: &Value) -> Result<CvaeOutput> {
        let (mu, logvar) = self.encode(tape, images, text)?;
        let latent = if tape.training() { Self::reparameterise(tape, &mu, &logvar)? } else { mu.clone() };
        let reconstruction = self.decode(tape, &latent, text)?;
        Ok(CvaeOutput { reconstruction, mu, logvar })
    }
}
