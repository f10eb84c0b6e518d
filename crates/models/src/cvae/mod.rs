//! A conditional variational autoencoder of images (Sohn et al. 2015), with a text as input of encoder and decoder.
//!
//! The text vector modulates the channels of every stage (FiLM, Perez et al. 2018), and the decoder takes it together
//! with the latent vector. Group norm rather than batch norm makes the result of a sample independent of its batch, so
//! any split over ranks gives the same numbers. Upsampling by nearest neighbours and a 3×3 convolution leaves no
//! checkerboard artefacts.
//!
//! A prompt controls the image if the latent vector does not repeat the text's information. The weight of the KL
//! divergence achieves this: every nat in the latent vector has a cost, while the text is free. If the weight is too
//! small, the latent vector carries the whole image and the prompt is ignored. If it is too large, everything that the
//! text leaves open is averaged to a blur.

mod decoder;
mod encoder;
mod film;
mod joint;
mod stage;

pub use joint::{CvaeLoss, KlWarmup, L1Sharpening, TextToImage};

use decoder::Decoder;
use encoder::Encoder;
use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, TensorPlan, Value, ops};

use crate::paired_layers::{PairedLayer, rules_of_pairs};

/// The settings of a [`Cvae`].
#[derive(Debug, Clone, PartialEq)]
pub struct CvaeConfig {
    /// Height and width of the images: the smallest size times 2 for each width.
    pub image_size: usize,
    /// The channels of the encoder after each halving; the decoder has them in reverse.
    pub widths: Vec<usize>,
    /// The number of elements of the latent vector.
    pub latent: usize,
    /// The number of elements of the text vector.
    pub text_dim: usize,
}

impl CvaeConfig {
    /// Returns how the stages can be cut over ranks, wherever the autoencoder is in a network: in pairs, by the channels between their
    /// convolutions. Ranks divide the groups of norms.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let stages = |part: &str| {
            let stage = |index| format!("*{part}.stages.{index}");
            let layers = (0..self.widths.len()).map(stage).map(|stage| PairedLayer {
                layer: format!("{stage}.conv"),
                behind: vec![format!("{stage}.norm = column"), format!("{stage}.film = column:gated")],
            });
            layers.collect::<Vec<_>>()
        };
        let mut decoder = stages("decoder");
        decoder.push(PairedLayer { layer: "*decoder.exit.conv".to_owned(), behind: Vec::new() });
        let rules = rules_of_pairs(&stages("encoder")).into_iter().chain(rules_of_pairs(&decoder));
        let plan = TensorPlan::new(rules.collect::<Vec<_>>().iter().map(String::as_str))?;
        plan.with_rules(["*decoder.entry.hidden = column", "*decoder.entry.fc = row"])
    }

    /// Returns the size of the smallest feature map.
    ///
    /// # Errors
    /// If the image size is not a multiple of the power of two.
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
    /// The reconstruction, [N, 3, S, S]: near [−1, 1], but not clamped.
    pub reconstruction: Value,
    /// The mean of the latent distribution, [N, Z].
    pub mu: Value,
    /// The logarithm of its variance, [N, Z].
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

    /// Returns the settings.
    pub fn config(&self) -> &CvaeConfig {
        &self.config
    }

    /// Returns the stages and head of the encoder. Each takes the output of the one before (the first the images [N, 3,
    /// S, S]) and the text [N, text_dim]; the last returns mean and log-variance.
    pub fn encoder_blocks(&self) -> &[Arc<dyn Block>] {
        self.encoder.blocks()
    }

    /// Returns the entry, stages and exit of the decoder. Each takes the output of the one before (the first a latent
    /// vector [N, Z]) and the text [N, text_dim]; the last returns images.
    pub fn decoder_blocks(&self) -> &[Arc<dyn Block>] {
        &self.decoder.blocks
    }

    /// Computes the latent distribution of images: mean and log-variance, [N, Z] each.
    ///
    /// # Shapes
    /// `images` [N, 3, S, S] in [−1, 1], `text` [N, text_dim].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn encode(&self, tape: &Tape, images: &Value, text: &Value) -> Result<(Value, Value)> {
        self.encoder.forward(tape, images, text)
    }

    /// Decodes latent vectors [N, Z] and texts [N, text_dim] to images near [−1, 1], not clamped.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn decode(&self, tape: &Tape, latent: &Value, text: &Value) -> Result<Value> {
        self.decoder.forward(tape, latent, text)
    }

    /// Samples the latent distribution: mu + e^(logvar/2)·ε. Gradients flow to both.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn reparameterise(tape: &Tape, mu: &Value, logvar: &Value) -> Result<Value> {
        let noise = ops::gaussian_noise(tape, mu.shape().clone(), mu.dtype()?)?;
        let std = ops::exp(tape, &ops::scale(tape, logvar, 0.5)?)?;
        ops::add(tape, mu, &ops::mul(tape, &std, &noise)?)
    }

    /// Encodes, samples and decodes. Evaluation uses the mean instead of a sample.
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
