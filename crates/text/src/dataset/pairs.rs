//! Pairs of texts, as tokens.

use phalanx_data::collate::{Collate, PadTo, Samples};
use phalanx_data::dataset::check_index;
use phalanx_data::{Batch, Dataset, PairedSentences, Result};

use crate::tokenizer::PairTokens;

/// The tokens of a text and of its translation, each with the end of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenPair {
    /// The text.
    pub source: Vec<u32>,
    /// Its translation.
    pub target: Vec<u32>,
}

/// Pairs of texts, in memory or generated. The weight of a pair is the number of target tokens, with the end.
#[derive(Debug, Clone)]
pub struct TokenPairs {
    pairs: Source,
    end: u32,
}

#[derive(Debug, Clone)]
enum Source {
    Memory { name: String, pairs: Vec<TokenPair> },
    Generated(PairedSentences),
}

impl TokenPairs {
    /// Makes a dataset of pairs, without ends; `name` is for messages.
    #[must_use]
    pub fn new(name: impl Into<String>, pairs: Vec<TokenPair>, special: PairTokens) -> Self {
        Self { pairs: Source::Memory { name: name.into(), pairs }, end: special.end }
    }

    /// Makes a dataset of generated sentences.
    #[must_use]
    pub fn generated(sentences: PairedSentences, special: PairTokens) -> Self {
        Self { pairs: Source::Generated(sentences), end: special.end }
    }
}

impl Dataset for TokenPairs {
    type Item = TokenPair;

    fn name(&self) -> &str {
        match &self.pairs {
            Source::Memory { name, .. } => name,
            Source::Generated(sentences) => sentences.name(),
        }
    }

    fn len(&self) -> usize {
        match &self.pairs {
            Source::Memory { pairs, .. } => pairs.len(),
            Source::Generated(sentences) => sentences.len(),
        }
    }

    fn get(&self, index: usize, epoch: u64) -> Result<TokenPair> {
        check_index(self.name(), index, self.len())?;
        let mut pair = match &self.pairs {
            Source::Memory { pairs, .. } => pairs[index].clone(),
            Source::Generated(sentences) => {
                let pair = sentences.get(index, epoch)?;
                TokenPair { source: pair.source, target: pair.target }
            }
        };
        pair.source.push(self.end);
        pair.target.push(self.end);
        Ok(pair)
    }

    fn lengths(&self) -> Option<Vec<u32>> {
        let Source::Memory { pairs, .. } = &self.pairs else { return None };
        Some(pairs.iter().map(|pair| pair.source.len().max(pair.target.len()) as u32).collect())
    }

    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        Ok(match &self.pairs {
            Source::Memory { pairs, .. } => pairs[index].target.len() as f32 + 1.0,
            Source::Generated(_) => self.get(index, 0)?.target.len() as f32,
        })
    }
}

/// A collation of [`TokenPair`]s.
///
/// The batch has `source`, u32 [N, S], and `lengths`, u32 `[N]`; `seen` and `targets`, u32 [N, T], where each target is seen in the next
/// column; and `mask`, f32 [N, T], 1 for targets.
#[derive(Debug, Clone, Copy)]
pub struct PairCollation {
    length: PadTo,
    special: PairTokens,
}

impl PairCollation {
    /// Makes the collation of texts padded to a length.
    #[must_use]
    pub fn new(length: PadTo, special: PairTokens) -> Self {
        Self { length, special }
    }

    /// Returns the rows of texts, padded, and their length.
    fn rows<'t>(&self, texts: impl Iterator<Item = &'t Vec<u32>> + Clone) -> (Vec<u32>, usize) {
        let longest = texts.clone().map(Vec::len).max().unwrap_or(0);
        let length = self.length.length(longest).unwrap_or(longest);
        let pad = |text: &'t Vec<u32>| {
            text.iter().copied().chain(std::iter::repeat_n(self.special.padding, length - text.len()))
        };
        (texts.flat_map(pad).collect(), length)
    }
}

impl Collate<TokenPair> for PairCollation {
    fn collate(&self, samples: &mut Samples<'_, TokenPair>) -> Result<Batch> {
        let mut pairs = Vec::with_capacity(samples.len());
        while let Some(sample) = samples.next() {
            let (index, pair) = sample?;
            let longest = pair.source.len().max(pair.target.len());
            if self.length.length(longest).is_none() {
                return Err(samples.error(index, format!("{longest} tokens; expected {:?}", self.length)));
            }
            pairs.push(pair);
        }
        let number = pairs.len();
        let (source, length) = self.rows(pairs.iter().map(|pair| &pair.source));
        let (targets, columns) = self.rows(pairs.iter().map(|pair| &pair.target));
        let mut seen = vec![self.special.start; number * columns];
        let mut mask = vec![0.0_f32; number * columns];
        for (row, pair) in pairs.iter().enumerate() {
            let from = row * columns;
            seen[from + 1..from + columns].copy_from_slice(&targets[from..from + columns - 1]);
            mask[from..from + pair.target.len()].fill(1.0);
        }
        let lengths: Vec<u32> = pairs.iter().map(|pair| pair.source.len() as u32).collect();
        Batch::new(number)
            .with("source", [number, length], source)?
            .with("lengths", [number], lengths)?
            .with("seen", [number, columns], seen)?
            .with("targets", [number, columns], targets)?
            .with("mask", [number, columns], mask)
    }
}
