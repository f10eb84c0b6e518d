//! Access to what a text-to-image training reads in captions.

use std::ops::Range;

use phalanx_tensor::{Tape, Value};

use super::step::StepInput;
use crate::engine::error::TrainError;

/// Features of captions.
#[derive(Debug, Clone)]
pub struct CaptionFeatures {
    /// Their name, such as `tokens`.
    pub name: String,
    /// The features, [N, …].
    pub rows: Value,
}

/// The attention of a layer to the tokens of captions.
#[derive(Debug, Clone)]
pub struct TokenAttention {
    /// Height and width of the layer's images.
    pub size: [usize; 2],
    /// The shares [N, height·width, tokens] that pixels, row by row, take from each token.
    pub shares: Value,
}

/// A word of a caption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaptionWord {
    /// The word.
    pub text: String,
    /// Its tokens in the encoded caption.
    pub tokens: Range<usize>,
}

/// A model that reads captions, for [`Training::reads_captions`](super::Training::reads_captions). `phalanx explain` shows what it makes
/// of them.
pub trait CaptionReader: Sync {
    /// Encodes captions, as features that the rest of the model reads.
    ///
    /// # Errors
    /// If a caption cannot be encoded.
    fn features(&self, tape: &Tape, captions: &[String]) -> Result<Vec<CaptionFeatures>, TrainError>;

    /// Returns the error of each sample of a batch under other captions than its own, at a level of noise from 0 to 1. The noise depends
    /// on the sample alone. `None` if the model has no levels of noise.
    ///
    /// # Errors
    /// Errors of the forward pass.
    fn errors(
        &self,
        _step: &StepInput<'_>,
        _captions: &[String],
        _level: f64,
    ) -> Result<Option<Vec<f64>>, TrainError> {
        Ok(None)
    }

    /// Returns the attention of each layer to the captions of a batch, at a level of noise from 0 to 1. None if the model does not attend
    /// to tokens.
    ///
    /// # Errors
    /// Errors of the forward pass.
    fn attention(&self, _step: &StepInput<'_>, _level: f64) -> Result<Vec<TokenAttention>, TrainError> {
        Ok(Vec::new())
    }

    /// Returns the words of a caption with their tokens; none if the model does not attend to tokens.
    fn words(&self, _caption: &str) -> Vec<CaptionWord> {
        Vec::new()
    }
}
