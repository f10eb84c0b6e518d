//! CLIP (Radford et al. 2021), after openai/CLIP's `model.py`: the text encoder with its parameter names, and a small
//! image tower to train it with from scratch.

mod image;
mod text;
mod weights;
mod words;

pub use image::{ImageTower, ImageTowerConfig};
pub use text::{ClipTextConfig, ClipTextEncoder, TextFeatures};
pub use weights::{is_text_weight, openai_names};

use std::sync::Arc;

use candle_core::Tensor;
use phalanx_tensor::{Block, Init, Param, Result, Scope, Tape, Value, loss, ops};

use crate::run_block::run_block;
use words::{WordHead, words_loss};

/// The inverse temperature, as a block without inputs, so that a sharded parameter is gathered before it is read.
#[derive(Debug)]
struct Temperature {
    name: String,
    logit_scale: Param,
}

impl Block for Temperature {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, _inputs: &[Value]) -> Result<Vec<Value>> {
        let scale = ops::exp(tape, &tape.param(&self.logit_scale)?)?;
        // The paper clips the scale at 100 to keep training stable; beyond it there is no gradient.
        let capped = tape.backend().has_numbers()
            && scale.to_host()?.to_dtype(candle_core::DType::F64)?.to_vec1::<f64>()?[0] > 100.0;
        Ok(vec![if capped { ops::full_like(tape, &scale, 100.0)? } else { scale }])
    }
}

/// A text encoder and an image tower, trained contrastively.
#[derive(Debug, Clone)]
pub struct Clip {
    text: ClipTextEncoder,
    image: ImageTower,
    temperature: Arc<dyn Block>,
    words: Option<WordHead>,
}

/// The outputs of [`Clip::forward`].
#[derive(Debug, Clone)]
pub struct ClipOutput {
    /// Image features of unit length, [N, E].
    pub image: Value,
    /// Text features of unit length, [N, E].
    pub text: Value,
    /// The inverse temperature, a scalar, at most 100.
    pub scale: Value,
    /// Logits of the words of each image's caption, [N, vocab], if the model has a head for them.
    pub words: Option<Value>,
}

impl Clip {
    /// Registers the model's parameters: the text encoder's under openai/CLIP's names, the image tower's under
    /// `visual`, and `logit_scale`, which starts at ln(1/0.07).
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, text: &ClipTextConfig, image: &ImageTowerConfig) -> Result<Self> {
        let text_encoder = ClipTextEncoder::new(scope, text)?;
        let image = ImageTower::new(&scope.pp("visual"), image, text.embed)?;
        let scale_scope = scope.block_named("logit_scale");
        let logit_scale = scale_scope.param("logit_scale", 1, Init::Constant((1.0_f64 / 0.07).ln()))?;
        let name = scale_scope.block_name().to_owned();
        let temperature = Arc::new(Temperature { name, logit_scale });
        Ok(Self { text: text_encoder, image, temperature, words: None })
    }

    /// Registers a model that also reads the words of captions in images, by a linear layer `visual_words` on the image
    /// tower; see [`ClipOutput::words_loss`].
    ///
    /// # Errors
    /// If a name is taken.
    pub fn with_words(scope: &Scope, text: &ClipTextConfig, image: &ImageTowerConfig) -> Result<Self> {
        let words = Some(WordHead::new(&scope.pp("visual_words"), text)?);
        Ok(Self { words, ..Self::new(scope, text, image)? })
    }

    /// Returns the text encoder.
    pub fn text(&self) -> &ClipTextEncoder {
        &self.text
    }

    /// Computes features of images [N, 3, H, W] and token ids [N, T].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn forward(&self, tape: &Tape, images: &Value, ids: &Tensor) -> Result<ClipOutput> {
        let image = self.image.forward(tape, images)?;
        let words = self.words.as_ref().map(|words| words.logits(tape, &image)).transpose()?;
        let image = ops::l2_normalise(tape, &image)?;
        let text = ops::l2_normalise(tape, &self.text.forward(tape, ids)?.pooled)?;
        let scale = run_block(tape, &self.temperature, &[])?;
        Ok(ClipOutput { image, text, scale, words })
    }
}

impl ClipOutput {
    /// Returns the contrastive loss of a batch in which image i belongs to text i; see [`loss::clip_contrastive`].
    ///
    /// # Errors
    /// Errors of the loss.
    pub fn loss(&self, tape: &Tape, over: loss::LossDivisor) -> Result<Value> {
        loss::clip_contrastive(tape, &self.image, &self.text, &self.scale, over)
    }

    /// Returns the mean cross-entropy of the words of the captions `ids` [N, T] by the images alone, or `None` without a
    /// head for them (Huang et al. 2024). Every word counts, also those that the contrastive loss does not need to tell
    /// a batch's captions apart.
    ///
    /// # Errors
    /// If the shapes do not match.
    pub fn words_loss(&self, tape: &Tape, ids: &Tensor, over: loss::LossDivisor) -> Result<Option<Value>> {
        self.words.as_ref().map(|logits| words_loss(tape, logits, ids, over)).transpose()
    }
}
