//! Many short texts in one allocation, and lists of them.
//!
//! A data set of a million images has millions of names and captions. Each as a `String` would take an allocation and 24
//! bytes beside its letters; here it takes 8.

use crate::rng::{Purpose, below, rng_for};

/// Texts one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct Strings {
    text: String,
    /// Where each ends in `text`.
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

    /// A text that exists.
    pub(crate) fn get(&self, index: usize) -> &str {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.text[begin..self.ends[index]]
    }
}

/// A list of captions for each sample.
#[derive(Debug, Clone, Default)]
pub(crate) struct CaptionLists {
    captions: Strings,
    /// Where each sample's captions end.
    ends: Vec<usize>,
}

impl CaptionLists {
    /// Adds a caption to those of the sample that comes next.
    pub(crate) fn push(&mut self, caption: &str) {
        self.captions.push(caption);
    }

    /// Ends the captions of a sample, and says how many it has.
    pub(crate) fn end_sample(&mut self) -> usize {
        let begin = self.ends.last().copied().unwrap_or(0);
        self.ends.push(self.captions.len());
        self.captions.len() - begin
    }

    /// One of the captions of a sample that exists and has some, chosen by (seed, epoch, index).
    pub(crate) fn draw(&self, seed: u64, epoch: u64, index: usize) -> &str {
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
    fn every_sample_has_its_own_captions_and_each_has_its_turn() {
        let mut lists = CaptionLists::default();
        for (sample, number) in [3, 1, 10].into_iter().enumerate() {
            for caption in 0..number {
                lists.push(&format!("{sample}:{caption}"));
            }
            assert_eq!(lists.end_sample(), number);
        }
        for (sample, number) in [3, 1, 10].into_iter().enumerate() {
            let drawn: BTreeSet<_> = (0..200).map(|epoch| lists.draw(7, epoch, sample)).collect();
            let expected: Vec<_> = (0..number).map(|caption| format!("{sample}:{caption}")).collect();
            assert_eq!(drawn.into_iter().collect::<Vec<_>>(), expected);
        }
        let drawn = |seed| (0..20).map(|epoch| lists.draw(seed, epoch, 2)).collect::<Vec<_>>();
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
    }
}
