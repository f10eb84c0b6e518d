//! Texts with masked tokens, for encoders (Devlin et al. 2018).

use std::sync::Arc;

use phalanx_data::collate::{Collate, PadTo, Samples};
use phalanx_data::dataset::check_index;
use phalanx_data::rng::{Purpose, below, rng_for, shuffle};
use phalanx_data::{Batch, DataError, Dataset, Result};

use super::SequenceLengths;
use super::segments::{Rows, Segments};
use crate::tokenizer::{EncoderTokens, Tokenizer};

/// Of ten chosen tokens this many are masked, and the next one is replaced by another token; the last stays.
const MASKED_OF_TEN: usize = 8;

/// The settings of [`MaskedTexts`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MaskingConfig {
    /// The share of the tokens of a text that are to be restored; BERT has 0.15.
    pub share: f64,
    /// The seed.
    pub seed: u64,
}

/// A text with hidden tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaskedSequence {
    /// The tokens, with those around the text.
    pub tokens: Vec<u32>,
    /// The places of the tokens to restore, ascending.
    pub places: Vec<u32>,
    /// The tokens to restore.
    pub originals: Vec<u32>,
}

/// Texts of which some tokens are to be restored. Of ten of them eight are masked, one is another token of the vocabulary, and one
/// stays.
///
/// The tokens are chosen by seed, epoch and index of a text, so they are other ones in each epoch and the same on any world. Their
/// number, at least one, follows from the length of the text, and is the weight of the sample. Special tokens are chosen only where
/// there are too few others.
#[derive(Debug, Clone)]
pub struct MaskedTexts<D> {
    texts: D,
    special: EncoderTokens,
    is_special: Arc<[bool]>,
    config: MaskingConfig,
}

impl<D: SequenceLengths> MaskedTexts<D> {
    /// Hides tokens of texts of a tokenizer, which [has](Tokenizer::for_encoder) the special tokens.
    ///
    /// # Errors
    /// If the share is not in (0, 1].
    pub fn new(
        texts: D,
        tokenizer: &Tokenizer,
        special: EncoderTokens,
        config: MaskingConfig,
    ) -> Result<Self> {
        if !(config.share > 0.0 && config.share <= 1.0) {
            let reason =
                format!("a share of {} of the tokens; expected more than 0 and at most 1", config.share);
            return Err(DataError::config("text.masking", reason));
        }
        Ok(Self { texts, special, is_special: tokenizer.are_special().into(), config })
    }

    fn chosen(&self, length: usize) -> usize {
        ((self.config.share * length as f64).round() as usize).clamp(1, length.max(1))
    }
}

impl<D: SequenceLengths> Dataset for MaskedTexts<D> {
    type Item = MaskedSequence;

    fn name(&self) -> &str {
        self.texts.name()
    }

    fn len(&self) -> usize {
        self.texts.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<MaskedSequence> {
        let mut text = self.texts.get(index, epoch)?;
        if text.is_empty() {
            return Err(DataError::sample(self.name(), index, "a text without a token has none to restore"));
        }
        let mut rng = rng_for(self.config.seed, Purpose::Masking, epoch, index as u64);
        let is_special = |token: u32| self.is_special.get(token as usize).copied().unwrap_or(false);
        let mut candidates: Vec<usize> = (0..text.len()).collect();
        shuffle(&mut rng, &mut candidates);
        candidates.sort_by_key(|at| is_special(text[*at]));
        candidates.truncate(self.chosen(text.len()));
        candidates.sort_unstable();
        let originals: Vec<u32> = candidates.iter().map(|at| text[*at]).collect();
        for &at in &candidates {
            match below(&mut rng, 10) {
                choice if choice < MASKED_OF_TEN => text[at] = self.special.mask,
                MASKED_OF_TEN => text[at] = below(&mut rng, self.is_special.len()) as u32,
                _ => {}
            }
        }
        let tokens: Vec<u32> =
            [self.special.start].into_iter().chain(text).chain([self.special.end]).collect();
        let places = candidates.into_iter().map(|at| at as u32 + 1).collect();
        Ok(MaskedSequence { tokens, places, originals })
    }

    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        Ok(self.chosen(self.texts.length(index)?) as f32)
    }
}

/// A collation of [`MaskedSequence`]s.
///
/// The batch has `tokens` and `types`, u32 [N, T], and `lengths`, u32 `[N]`; `targets`, u32 [N, T], has the tokens to restore where
/// `mask`, f32 [N, T], is 1.
#[derive(Debug, Clone, Copy)]
pub struct MaskedCollation {
    length: PadTo,
    padding: u32,
}

impl MaskedCollation {
    /// Makes the collation of texts padded with a token to a length.
    #[must_use]
    pub fn new(length: PadTo, padding: u32) -> Self {
        Self { length, padding }
    }
}

impl Collate<MaskedSequence> for MaskedCollation {
    fn collate(&self, samples: &mut Samples<'_, MaskedSequence>) -> Result<Batch> {
        let mut texts = Vec::with_capacity(samples.len());
        let mut rows = Rows::new(self.length, self.padding);
        while let Some(sample) = samples.next() {
            let (index, sequence) = sample?;
            let (tokens, second_at) = (sequence.tokens.clone(), sequence.tokens.len());
            rows.push(samples, index, Segments { tokens, second_at })?;
            texts.push(sequence);
        }
        let (number, length) = (texts.len(), rows.length());
        let (mut targets, mut mask) = (vec![0; number * length], vec![0.0_f32; number * length]);
        for (row, sequence) in texts.iter().enumerate() {
            for (place, original) in sequence.places.iter().zip(&sequence.originals) {
                targets[row * length + *place as usize] = *original;
                mask[row * length + *place as usize] = 1.0;
            }
        }
        rows.batch()?.with("targets", [number, length], targets)?.with("mask", [number, length], mask)
    }
}
