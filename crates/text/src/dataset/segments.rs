//! Rows of encoders: one text or two, with the tokens around them.

use phalanx_data::collate::{PadTo, Samples};
use phalanx_data::{Batch, Result};

use crate::tokenizer::EncoderTokens;

/// The tokens of a text, or of two, with those around them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segments {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The place of the first token of the second text; without one, the number of tokens.
    pub second_at: usize,
}

impl EncoderTokens {
    /// Returns a text, or two, with the tokens around them, at most `longest` in all: start, text, end; second text, end. Of two that
    /// are too long together, the longer one loses its end until both are as long, and then both do.
    ///
    /// Source: BERT (Devlin et al. 2018); the cut is that of Hugging Face's `longest_first`.
    #[must_use]
    pub fn around(&self, text: &[u32], second: Option<&[u32]>, longest: usize) -> Segments {
        let Some(second) = second else {
            let kept = text.len().min(longest.saturating_sub(2));
            let tokens = [&[self.start], &text[..kept], &[self.end]].concat();
            return Segments { second_at: tokens.len(), tokens };
        };
        let [first, kept] = kept_of_two([text.len(), second.len()], longest.saturating_sub(3));
        let mut tokens = [&[self.start], &text[..first], &[self.end]].concat();
        let second_at = tokens.len();
        tokens.extend_from_slice(&second[..kept]);
        tokens.push(self.end);
        Segments { tokens, second_at }
    }
}

/// Returns the lengths of two texts, cut to `most` tokens together.
fn kept_of_two([first, second]: [usize; 2], most: usize) -> [usize; 2] {
    if first + second <= most {
        return [first, second];
    }
    let shorter = first.min(second);
    let longer = shorter.max(most.saturating_sub(shorter));
    let [shorter, longer] =
        if shorter + longer > most { [most / 2, most / 2 + most % 2] } else { [shorter, longer] };
    if first > second { [longer, shorter] } else { [shorter, longer] }
}

/// Texts of different lengths as the rows of arrays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PaddedRows {
    /// The tokens, [N, T]; behind a text those of padding.
    pub tokens: Vec<u32>,
    /// The segments, [N, T]: 1 in second texts.
    pub types: Vec<u32>,
    /// The numbers of tokens, `[N]`.
    pub lengths: Vec<u32>,
}

impl PaddedRows {
    /// Pads texts to `length` tokens, which none exceeds.
    #[must_use]
    pub fn new(texts: &[Segments], length: usize, padding: u32) -> Self {
        let mut tokens = vec![padding; texts.len() * length];
        let mut types = vec![0; texts.len() * length];
        for (row, Segments { tokens: text, second_at }) in texts.iter().enumerate() {
            tokens[row * length..][..text.len()].copy_from_slice(text);
            types[row * length..][*second_at..text.len()].fill(1);
        }
        let lengths = texts.iter().map(|text| text.tokens.len() as u32).collect();
        Self { tokens, types, lengths }
    }
}

/// The texts of a batch.
pub(super) struct Rows {
    pad: PadTo,
    padding: u32,
    texts: Vec<Segments>,
}

impl Rows {
    pub(super) fn new(pad: PadTo, padding: u32) -> Self {
        Self { pad, padding, texts: Vec::new() }
    }

    /// Adds texts, which must fit.
    pub(super) fn push<T>(&mut self, samples: &Samples<'_, T>, index: usize, text: Segments) -> Result<()> {
        let length = text.tokens.len();
        if length == 0 || self.pad.length(length).is_none() {
            let reason = format!("{length} tokens; expected 1 up to {:?}", self.pad);
            return Err(samples.error(index, reason));
        }
        self.texts.push(text);
        Ok(())
    }

    /// The columns: those of the longest text, padded.
    pub(super) fn length(&self) -> usize {
        let longest = self.texts.iter().map(|text| text.tokens.len()).max().unwrap_or(0);
        // Each text fits, so the longest does.
        self.pad.length(longest).unwrap_or(longest)
    }

    /// Makes a batch with `tokens`, `types` and `lengths`. The second text has type 1.
    pub(super) fn batch(&self) -> Result<Batch> {
        let (number, length) = (self.texts.len(), self.length());
        let PaddedRows { tokens, types, lengths } = PaddedRows::new(&self.texts, length, self.padding);
        Batch::new(number)
            .with("tokens", [number, length], tokens)?
            .with("types", [number, length], types)?
            .with("lengths", [number], lengths)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_of_two_texts_is_cut_first() {
        for (lengths, most, kept) in [
            ([3, 4], 7, [3, 4]),
            ([3, 9], 8, [3, 5]),
            ([9, 3], 8, [5, 3]),
            ([9, 9], 7, [3, 4]),
            ([5, 9], 8, [4, 4]),
            ([9, 5], 7, [4, 3]),
            ([0, 9], 4, [0, 4]),
            ([4, 4], 0, [0, 0]),
        ] {
            assert_eq!(kept_of_two(lengths, most), kept, "{lengths:?} {most}");
        }
        let special = EncoderTokens { padding: 0, start: 1, end: 2, mask: 3 };
        let two = special.around(&[10, 11], Some(&[20, 21, 22]), 7);
        assert_eq!((two.tokens, two.second_at), (vec![1, 10, 11, 2, 20, 21, 2], 4));
        let one = special.around(&[10, 11, 12], None, 4);
        assert_eq!((one.tokens, one.second_at), (vec![1, 10, 11, 2], 4));
    }
}
