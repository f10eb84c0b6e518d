//! Blocks of a long sequence of tokens.

use phalanx_data::dataset::check_index;
use phalanx_data::{DataError, Dataset, Result, SentencesDataset};

use super::{TokenPart, TokenSequences};
use crate::shards::{CHECKED, TokenStream};

/// Sequences of tokens whose lengths are known before they are read.
pub trait SequenceLengths: Dataset<Item = Vec<u32>> {
    /// Returns the number of tokens of a sample.
    ///
    /// # Errors
    /// If `index` is not below the number of samples.
    fn length(&self, index: usize) -> Result<usize>;
}

impl SequenceLengths for TokenSequences {
    fn length(&self, index: usize) -> Result<usize> {
        Ok(self.weight(index, 0)? as usize + 1)
    }
}

impl SequenceLengths for SentencesDataset {
    fn length(&self, index: usize) -> Result<usize> {
        Ok(self.weight(index, 0)? as usize + 1)
    }
}

/// Tokens cut into blocks of equal length without an overlap, the last of a part shorter. Every token is in one block.
#[derive(Debug, Clone)]
pub struct TokenBlocks {
    name: String,
    parts: Vec<TokenPart>,
    /// The number of blocks of the parts before each part, and of all.
    before: Vec<usize>,
    length: usize,
}

impl TokenBlocks {
    /// Cuts parts into blocks of `length` tokens; `name` is for messages.
    ///
    /// # Errors
    /// If the length is 0, or there is no token.
    pub fn new(name: impl Into<String>, parts: Vec<TokenPart>, length: usize) -> Result<Self> {
        let name = name.into();
        if length == 0 {
            return Err(DataError::config("text.blocks", "a block of 0 tokens; at least 1 is needed"));
        }
        let mut before = vec![0];
        for part in &parts {
            before.push(before[before.len() - 1] + part.len().div_ceil(length as u64) as usize);
        }
        if before.last() == Some(&0) {
            return Err(DataError::Text { name, reason: "no token".to_owned() });
        }
        Ok(Self { name, parts, before, length })
    }

    /// Checks that the tokens of files are below `vocab`: the first 2²⁹ of each.
    ///
    /// # Errors
    /// If one is not: the error names its place.
    pub fn check_tokens(&self, vocab: usize) -> Result<()> {
        self.parts.iter().try_for_each(|part| match &part.stream {
            TokenStream::File(shard) => shard.check_tokens(vocab, CHECKED),
            TokenStream::Memory { .. } => Ok(()),
        })
    }

    /// Finds a block: its part, its first token and its number of tokens.
    fn place(&self, index: usize) -> Result<(&TokenPart, u64, usize)> {
        check_index(&self.name, index, self.len())?;
        let part = self.before.partition_point(|before| *before <= index) - 1;
        let number = (index - self.before[part]) as u64;
        let part = &self.parts[part];
        let begin = part.range.start + number * self.length as u64;
        let tokens = (part.range.end - begin).min(self.length as u64);
        Ok((part, begin, tokens as usize))
    }
}

impl Dataset for TokenBlocks {
    type Item = Vec<u32>;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.before.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Vec<u32>> {
        let (part, begin, tokens) = self.place(index)?;
        part.stream.read(begin, tokens)
    }
}

impl SequenceLengths for TokenBlocks {
    fn length(&self, index: usize) -> Result<usize> {
        Ok(self.place(index)?.2)
    }
}
