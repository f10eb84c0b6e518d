//! The whole text-to-image model: a text encoder and an autoencoder, trained together.

use candle_core::Tensor;
use phalanx_tensor::{Result, Scope, Tape, TensorError, Value, loss, ops};

use super::{Cvae, CvaeConfig, CvaeOutput};
use crate::clip::{ClipTextConfig, ClipTextEncoder};

/// The one value of a block that gives one.
pub(super) fn single(mut values: Vec<Value>) -> Result<Value> {
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        _ => Err(TensorError::Backward("a block of the autoencoder must give one value".into())),
    }
}

/// A text encoder whose pooled feature conditions a [`Cvae`].
#[derive(Debug, Clone)]
pub struct TextToImage {
    text: ClipTextEncoder,
    cvae: Cvae,
}

/// The parts of an autoencoder's loss.
#[derive(Debug, Clone)]
pub struct CvaeLoss {
    /// What is minimised: L1, perhaps smoothed, plus the weighted divergence.
    pub total: Value,
    /// Mean absolute error of the pixels in [−1, 1].
    pub l1: Value,
    /// Divergence from the prior in nats a sample.
    pub kl: Value,
}

impl CvaeOutput {
    /// The loss of reconstructing `images` [N, 3, S, S]: L1, its tip rounded off within `smooth` (0 for plain L1; see
    /// [`loss::smooth_l1`]), plus `kl_weight` times the divergence from the prior.
    ///
    /// # Errors
    /// If `images` have another shape than the reconstruction.
    pub fn loss(
        &self,
        tape: &Tape,
        images: &Value,
        (kl_weight, smooth): (f64, f64),
        over: loss::Over,
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
    /// `freeze_text` the encoder is held as it is, for weights that were trained elsewhere.
    ///
    /// # Errors
    /// If the text feature's width is not what the autoencoder expects, or a name is taken.
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

    /// The text encoder.
    pub fn text(&self) -> &ClipTextEncoder {
        &self.text
    }

    /// The autoencoder.
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

    /// Images of texts [N, T] at latent vectors [N, Z].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn sample(&self, tape: &Tape, ids: &Tensor, latent: &Tensor) -> Result<Value> {
        let text = self.text.forward(tape, ids)?.pooled;
        self.cvae.decode(tape, &Value::constant(tape.backend().from_host(latent)?), &text)
    }
}

/// The weight of the divergence over time: zero at first, so that the decoder learns to use the latent vector at
/// all, then rising linearly (Bowman et al. 2016).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KlWarmup {
    /// The final weight.
    pub weight: f64,
    /// Steps over which it rises.
    pub steps: u64,
}

impl KlWarmup {
    /// The weight at a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        if step >= self.steps { self.weight } else { self.weight * step as f64 / self.steps as f64 }
    }
}

/// How far the tip of the L1 loss is rounded off over time. Where an object is not yet known, the median of all
/// pictures is the background, and plain L1 rests there: no gradient says that an object is missing. A quadratic
/// loss has the mean as its optimum, in which every object leaves a trace to start from. So the loss starts
/// quadratic and ends, when objects are known, as the L1 that gives sharp edges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct L1Sharpening {
    /// Errors below this are quadratic at the start.
    pub smooth: f64,
    /// Steps over which that falls to 0; 0 leaves it as it is.
    pub steps: u64,
}

impl L1Sharpening {
    /// The width of the rounded tip at a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        match self.steps {
            0 => self.smooth,
            steps => self.smooth * (1.0 - step.min(steps) as f64 / steps as f64),
        }
    }
}
