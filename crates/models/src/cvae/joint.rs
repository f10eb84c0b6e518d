//! The text-to-image model: a text encoder and an autoencoder, trained together.

use candle_core::Tensor;
use phalanx_tensor::{Result, Scope, Tape, TensorError, Value, loss, ops};

use super::{Cvae, CvaeConfig, CvaeOutput};
use crate::clip::{ClipTextConfig, ClipTextEncoder};

/// A text encoder whose pooled feature conditions a [`Cvae`].
#[derive(Debug, Clone)]
pub struct TextToImage {
    text: ClipTextEncoder,
    cvae: Cvae,
}

/// The parts of an autoencoder's loss.
#[derive(Debug, Clone)]
pub struct CvaeLoss {
    /// The minimised loss: L1, possibly smoothed, plus the weighted divergence.
    pub total: Value,
    /// The mean absolute error of the pixels in [−1, 1].
    pub l1: Value,
    /// The divergence from the prior, in nats per sample.
    pub kl: Value,
}

impl CvaeOutput {
    /// Returns the loss of reconstructing `images` [N, 3, S, S]: L1, smoothed within `smooth` (0 for plain L1; see
    /// [`loss::smooth_l1`]), plus `kl_weight` times the divergence from the prior.
    ///
    /// # Errors
    /// If the shape of `images` differs from the reconstruction.
    pub fn loss(
        &self,
        tape: &Tape,
        images: &Value,
        (kl_weight, smooth): (f64, f64),
        over: loss::LossDivisor,
    ) -> Result<CvaeLoss> {
        let l1 = loss::l1(tape, &self.reconstruction.detach(), images, over)?;
        let kl = loss::kl_standard_normal(tape, &self.mu, &self.logvar, over)?;
        let weighted = ops::scale(tape, &kl, kl_weight)?;
        let smoothed = loss::smooth_l1(tape, &self.reconstruction, images, smooth, over)?;
        Ok(CvaeLoss { total: ops::add(tape, &smoothed, &weighted)?, l1, kl })
    }
}

impl TextToImage {
    /// Registers the model's parameters: the text encoder's under `text`, the autoencoder's under `cvae`. With
    /// `freeze_text` the text encoder is not trained, for pretrained weights.
    ///
    /// # Errors
    /// If the width of text features differs from the autoencoder's, or a name is taken.
    pub fn new(scope: &Scope, text: &ClipTextConfig, cvae: &CvaeConfig, freeze_text: bool) -> Result<Self> {
        if text.embed != cvae.text_dim {
            let problem = format!(
                "text features have {} elements; the autoencoder expects {}",
                text.embed, cvae.text_dim
            );
            return Err(TensorError::Shape { op: "text-to-image", problem });
        }
        let text_scope = scope.pp("text");
        let text_scope = if freeze_text { text_scope.frozen() } else { text_scope };
        Ok(Self { text: ClipTextEncoder::new(&text_scope, text)?, cvae: Cvae::new(&scope.pp("cvae"), cvae)? })
    }

    /// Returns the text encoder.
    pub fn text(&self) -> &ClipTextEncoder {
        &self.text
    }

    /// Returns the autoencoder.
    pub fn cvae(&self) -> &Cvae {
        &self.cvae
    }

    /// Reconstructs images [N, 3, S, S] in [−1, 1] under texts [N, T].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward(&self, tape: &Tape, images: &Value, ids: &Tensor) -> Result<CvaeOutput> {
        let text = self.text.forward(tape, ids)?.pooled;
        self.cvae.forward(tape, images, &text)
    }

    /// Generates images of texts [N, T] from latent vectors [N, Z].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn sample(&self, tape: &Tape, ids: &Tensor, latent: &Tensor) -> Result<Value> {
        let text = self.text.forward(tape, ids)?.pooled;
        self.cvae.decode(tape, &Value::constant(tape.backend().from_host(latent)?), &text)
    }
}

/// The schedule of the divergence's weight: zero at first, so that the decoder learns to use the latent vector, then
/// rising linearly (Bowman et al. 2016).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlWarmup {
    /// The final weight.
    pub weight: f64,
    /// The number of steps over which it rises.
    pub steps: u64,
}

impl KlWarmup {
    /// Returns the weight at a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step >= self.steps { self.weight } else { self.weight * step as f64 / self.steps as f64 }
    }
}

/// The schedule of the smoothing of the L1 loss, from quadratic to plain L1.
///
/// Before an object is learnt, the median of all pictures is the background, where plain L1 has no gradient towards the
/// object. The optimum of a quadratic loss is the mean, in which every object leaves a trace. So the loss starts
/// quadratic and ends as the L1 that gives sharp edges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct L1Sharpening {
    /// The error below which the loss is quadratic at the start.
    pub smooth: f64,
    /// The number of steps over which it falls to 0; 0 keeps it constant.
    pub steps: u64,
}

impl L1Sharpening {
    /// Returns the smoothing at a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        match self.steps {
            0 => self.smooth,
            steps => self.smooth * (1.0 - step.min(steps) as f64 / steps as f64),
        }
    }
}
