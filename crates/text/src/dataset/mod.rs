//! Datasets of tokens, and their batches.

mod blocks;
mod collation;
mod labelled;
mod masked;
mod pairs;
mod segments;
mod sequences;
mod windows;

use std::ops::Range;

use phalanx_data::Result;

use crate::shards::TokenStream;
pub use blocks::{SequenceLengths, TokenBlocks};
pub use collation::WindowCollation;
pub use labelled::{LabelledCollation, LabelledSegments, LabelledTexts, LabelledTokens};
pub use masked::{MaskedCollation, MaskedSequence, MaskedTexts, MaskingConfig};
pub use pairs::{PairCollation, TokenPair, TokenPairs};
pub use segments::{PaddedRows, Segments};
pub use sequences::{SequenceBorders, TokenSequences};
pub use windows::{DocumentBorders, TokenWindow, TokenWindows, WindowsConfig};

/// A range of the tokens of a stream.
#[derive(Debug, Clone)]
pub struct TokenPart {
    /// The tokens.
    pub stream: TokenStream,
    /// The range.
    pub range: Range<u64>,
}

impl TokenPart {
    /// Returns all tokens of a stream.
    #[must_use]
    pub fn whole(stream: TokenStream) -> Self {
        let range = 0..stream.len();
        Self { stream, range }
    }

    /// Splits a stream: the last `percent` of its tokens are apart.
    #[must_use]
    pub fn split(stream: &TokenStream, percent: u64) -> [Self; 2] {
        let cut = (u128::from(stream.len()) * u128::from(100 - percent.min(100)) / 100) as u64;
        [0..cut, cut..stream.len()].map(|range| Self { stream: stream.clone(), range })
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns true without tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Reads all tokens into memory.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn read(&self) -> Result<Vec<u32>> {
        self.stream.read(self.range.start, self.len() as usize)
    }
}
