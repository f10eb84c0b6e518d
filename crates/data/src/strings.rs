//! Compact storage of many short texts, and of lists of them.
//!
//! A dataset of a million images has millions of names and captions. Each `String` would take an allocation and 24
//! bytes in addition to its letters; here it takes 8.

use crate::rng::{Purpose, below, rng_for};

/// Texts in one allocation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strings {
    text: String,
    /// The end of each text in `text`.
    ends: Vec<usize>,
}

impl Strings {
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        self.ends.push(self.text.len());
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns a text.
    pub(crate) fn get(&self, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[begin..self.ends[index]]
    }
}

/// A list of captions for each sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct CaptionLists {
    captions: Strings,
    /// The end of each sample's captions.
    ends: Vec<usize>,
}

impl CaptionLists {
    /// Adds a caption of the current sample.
    pub(crate) fn push(&mut self, caption: &str) {
        self.captions.push(caption);
    }

    /// Ends the captions of the current sample, and returns their number.
    pub(crate) fn end_sample(&mut self) -> usize {
        let begin = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.captions.len());
        self.captions.len() - begin
    }

    /// Returns one of the captions of a sample, chosen by (seed, epoch, index).
    pub(crate) fn pick(&self, seed: u64, epoch: u64, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        let mut rng = rng_for(seed, Purpose::Caption, epoch, index as u64);
        self.captions.get(begin + below(&mut rng, self.ends[index] - begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_caption_of_a_sample_is_chosen() {
        let mut lists = CaptionLists::default();
        for (sample, number) in [3, 1, 10].into_iter().enumerate() {
            for caption in 0..number {
                lists.push(&format!("{sample}:{caption}"));
            }
            assert_eq!(lists.end_sample(), number);
        }
        for (sample, number) in [3, 1, 10].into_iter().enumerate() {
            let chosen: BTreeSet<_> = (0..200).map(|epoch| lists.pick(7, epoch, sample)).collect();
            let expected: Vec<_> = (0..number).map(|caption| format!("{sample}:{caption}")).collect();
            assert_eq!(chosen.into_iter().collect::<Vec<_>>(), expected);
        }
        let chosen = |seed| (0..20).map(|epoch| lists.pick(seed, epoch, 2)).collect::<Vec<_>>();
        assert_eq!(chosen(1), chosen(1));
        assert_ne!(chosen(1), chosen(2));
    }
}
