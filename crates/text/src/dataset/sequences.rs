//! Documents or lines as samples.

use std::ops::Range;

use phalanx_data::dataset::check_index;
use phalanx_data::{DataError, Dataset, Result};

use super::TokenPart;

/// The ends of the sequences of [`TokenSequences`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SequenceBorders {
    /// A sequence ends with this token, such as a line feed or the end of a text.
    Behind(u32),
    /// Sequences are the documents of the index of the tokens.
    Documents,
}

/// Sequences of at least two tokens: the lines or the documents of a part, for batches that are padded to their longest.
///
/// A sequence of more than `max_tokens` continues in the next sample, which begins with the last token of the one before. So
/// every token but the first of a sequence is predicted once. The weight of a sample is its number of predictions.
#[derive(Debug, Clone)]
pub struct TokenSequences {
    name: String,
    part: TokenPart,
    samples: Vec<Range<u64>>,
}

impl TokenSequences {
    /// Cuts a part into sequences; `name` is for messages.
    ///
    /// # Errors
    /// If `max_tokens` is below 2, the tokens cannot be read, or no sequence has two tokens.
    pub fn new(
        name: impl Into<String>,
        part: TokenPart,
        borders: SequenceBorders,
        max_tokens: usize,
    ) -> Result<Self> {
        let name = name.into();
        if max_tokens < 2 {
            let reason = format!("a sample of {max_tokens} tokens has no prediction; at least 2 are needed");
            return Err(DataError::config("text.sequences", reason));
        }
        let mut samples = Vec::new();
        let mut begin = part.range.start;
        for end in ends(&part, borders)? {
            samples.extend(cut(begin..end, max_tokens as u64));
            begin = end;
        }
        if samples.is_empty() {
            let reason = format!("no sequence of two tokens among {}", part.len());
            return Err(DataError::Text { name, reason });
        }
        Ok(Self { name, part, samples })
    }
}

/// The ends of the sequences, up to that of the part.
fn ends(part: &TokenPart, borders: SequenceBorders) -> Result<Vec<u64>> {
    let within = part.range.start + 1..part.range.end;
    let mut ends: Vec<u64> = match borders {
        SequenceBorders::Documents => {
            let all = part.stream.documents().unwrap_or_default();
            all.iter().copied().filter(|border| within.contains(border)).collect()
        }
        SequenceBorders::Behind(token) => {
            let tokens = part.read()?;
            let found = tokens.iter().zip(part.range.start + 1..).filter(|(other, _)| **other == token);
            found.map(|(_, end)| end).filter(|end| within.contains(end)).collect()
        }
    };
    ends.push(part.range.end);
    Ok(ends)
}

/// Cuts a sequence into samples that share their border tokens; those of one token are left out.
fn cut(sequence: Range<u64>, max_tokens: u64) -> impl Iterator<Item = Range<u64>> {
    let predictions = (sequence.end - sequence.start).saturating_sub(1);
    (0..predictions).step_by(max_tokens as usize - 1).map(move |from| {
        let begin = sequence.start + from;
        begin..(begin + max_tokens).min(sequence.end)
    })
}

impl Dataset for TokenSequences {
    type Item = Vec<u32>;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.samples.len()
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Vec<u32>> {
        check_index(&self.name, index, self.len())?;
        let range = &self.samples[index];
        self.part.stream.read(range.start, (range.end - range.start) as usize)
    }

    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(&self.name, index, self.len())?;
        let range = &self.samples[index];
        Ok((range.end - range.start - 1) as f32)
    }
}
