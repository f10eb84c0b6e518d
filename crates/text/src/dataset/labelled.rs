//! Texts with classes, one or two of a class.

use phalanx_data::collate::{Collate, PadTo, Samples};
use phalanx_data::dataset::check_index;
use phalanx_data::{Batch, Dataset, JudgedSentences, Result};

use super::segments::{Rows, Segments};
use crate::tokenizer::EncoderTokens;

/// The tokens of a text, or of two, and their class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledTokens {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The tokens of a second text.
    pub second: Option<Vec<u32>>,
    /// The class.
    pub class: u32,
}

/// A text, or two, with the tokens around them, and their class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledSegments {
    /// The tokens.
    pub segments: Segments,
    /// The class.
    pub class: u32,
}

/// Texts with classes, in memory or generated.
#[derive(Debug, Clone)]
pub struct LabelledTexts {
    texts: Source,
    special: EncoderTokens,
    /// The longest text, with the tokens around it.
    longest: usize,
}

#[derive(Debug, Clone)]
enum Source {
    Memory { name: String, texts: Vec<LabelledTokens> },
    Generated(JudgedSentences),
}

impl LabelledTexts {
    /// Makes a dataset of texts, without tokens around them; `name` is for messages. Tokens beyond `longest`, with those around
    /// texts, are left out.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        texts: Vec<LabelledTokens>,
        special: EncoderTokens,
        longest: usize,
    ) -> Self {
        Self { texts: Source::Memory { name: name.into(), texts }, special, longest }
    }

    /// Makes a dataset of generated sentences.
    #[must_use]
    pub fn generated(sentences: JudgedSentences, special: EncoderTokens, longest: usize) -> Self {
        Self { texts: Source::Generated(sentences), special, longest }
    }
}

impl Dataset for LabelledTexts {
    type Item = LabelledSegments;

    fn name(&self) -> &str {
        match &self.texts {
            Source::Memory { name, .. } => name,
            Source::Generated(sentences) => sentences.name(),
        }
    }

    fn len(&self) -> usize {
        match &self.texts {
            Source::Memory { texts, .. } => texts.len(),
            Source::Generated(sentences) => sentences.len(),
        }
    }

    fn get(&self, index: usize, epoch: u64) -> Result<LabelledSegments> {
        check_index(self.name(), index, self.len())?;
        let around = |text: &[u32], second| self.special.around(text, second, self.longest);
        Ok(match &self.texts {
            Source::Memory { texts, .. } => {
                let LabelledTokens { tokens, second, class } = &texts[index];
                LabelledSegments { segments: around(tokens, second.as_deref()), class: *class }
            }
            Source::Generated(sentences) => {
                let sentence = sentences.get(index, epoch)?;
                LabelledSegments { segments: around(&sentence.tokens, None), class: sentence.class }
            }
        })
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        let Source::Memory { texts, .. } = &self.texts else { return None };
        let length = |text: &LabelledTokens| text.tokens.len() + text.second.as_ref().map_or(0, Vec::len);
        Some(texts.iter().map(|text| length(text).min(self.longest) as u32).collect())
    }
}

/// A collation of [`LabelledSegments`].
///
/// The batch has `tokens` and `types` (1 in second texts), u32 [N, T], and `lengths` and `labels`, u32 `[N]`.
#[derive(Debug, Clone, Copy)]
pub struct LabelledCollation {
    length: PadTo,
    padding: u32,
}

impl LabelledCollation {
    /// Makes the collation of texts padded with a token to a length.
    #[must_use]
    pub fn new(length: PadTo, padding: u32) -> Self {
        Self { length, padding }
    }
}

impl Collate<LabelledSegments> for LabelledCollation {
    fn collate(&self, samples: &mut Samples<'_, LabelledSegments>) -> Result<Batch> {
        let mut labels = Vec::with_capacity(samples.len());
        let mut rows = Rows::new(self.length, self.padding);
        while let Some(sample) = samples.next() {
            let (index, text) = sample?;
            rows.push(samples, index, text.segments)?;
            labels.push(text.class);
        }
        rows.batch()?.with("labels", [labels.len()], labels)
    }
}
