//! Texts with classes, and rows of texts of different lengths.

use phalanx_data::collate::{Collate, PadTo, Samples};
use phalanx_data::dataset::check_index;
use phalanx_data::{Batch, Dataset, JudgedSentences, Result};

use crate::tokenizer::EncoderTokens;

/// The tokens of a text, with those around it, and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledTokens {
    /// The tokens.
    pub tokens: Vec<u32>,
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
    /// Makes a dataset of texts, without tokens around them; `name` is for messages. Tokens beyond `longest`, with the two around a
    /// text, are left out.
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

impl EncoderTokens {
    /// Returns a text with the tokens around it, at most `longest` in all.
    #[must_use]
    pub fn around(&self, text: &[u32], longest: usize) -> Vec<u32> {
        let kept = text.len().min(longest.saturating_sub(2));
        [&[self.start], &text[..kept], &[self.end]].concat()
    }
}

impl Dataset for LabelledTexts {
    type Item = LabelledTokens;

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

    fn get(&self, index: usize, epoch: u64) -> Result<LabelledTokens> {
        check_index(self.name(), index, self.len())?;
        let (text, class) = match &self.texts {
            Source::Memory { texts, .. } => (texts[index].tokens.clone(), texts[index].class),
            Source::Generated(sentences) => {
                let sentence = sentences.get(index, epoch)?;
                (sentence.tokens, sentence.class)
            }
        };
        Ok(LabelledTokens { tokens: self.special.around(&text, self.longest), class })
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        let Source::Memory { texts, .. } = &self.texts else { return None };
        Some(texts.iter().map(|text| text.tokens.len().min(self.longest) as u32).collect())
    }
}

/// A collation of [`LabelledTokens`].
///
/// The batch has `tokens` and `types`, u32 [N, T], and `lengths` and `labels`, u32 `[N]`.
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

impl Collate<LabelledTokens> for LabelledCollation {
    fn collate(&self, samples: &mut Samples<'_, LabelledTokens>) -> Result<Batch> {
        let mut labels = Vec::with_capacity(samples.len());
        let mut rows = Rows::new(self.length, self.padding);
        while let Some(sample) = samples.next() {
            let (index, text) = sample?;
            rows.push(samples, index, &text.tokens)?;
            labels.push(text.class);
        }
        rows.batch()?.with("labels", [labels.len()], labels)
    }
}

/// Texts of different lengths, as the rows of an array.
pub(super) struct Rows {
    pad: PadTo,
    padding: u32,
    texts: Vec<Vec<u32>>,
}

impl Rows {
    pub(super) fn new(pad: PadTo, padding: u32) -> Self {
        Self { pad, padding, texts: Vec::new() }
    }

    /// Adds a text, which must fit.
    pub(super) fn push<T>(&mut self, samples: &Samples<'_, T>, index: usize, text: &[u32]) -> Result<()> {
        if text.is_empty() || self.pad.length(text.len()).is_none() {
            let reason = format!("{} tokens; expected 1 up to {:?}", text.len(), self.pad);
            return Err(samples.error(index, reason));
        }
        self.texts.push(text.to_vec());
        Ok(())
    }

    /// The columns: those of the longest text, padded.
    pub(super) fn length(&self) -> usize {
        let longest = self.texts.iter().map(Vec::len).max().unwrap_or(0);
        // Each text fits, so the longest does.
        self.pad.length(longest).unwrap_or(longest)
    }

    /// Makes a batch with `tokens`, `types` and `lengths`.
    pub(super) fn batch(&self) -> Result<Batch> {
        let (number, length) = (self.texts.len(), self.length());
        let mut tokens = vec![self.padding; number * length];
        for (row, text) in self.texts.iter().enumerate() {
            tokens[row * length..][..text.len()].copy_from_slice(text);
        }
        let lengths: Vec<u32> = self.texts.iter().map(|text| text.len() as u32).collect();
        Batch::new(number)
            .with("tokens", [number, length], tokens)?
            .with("types", [number, length], vec![0_u32; number * length])?
            .with("lengths", [number], lengths)
    }
}
