//! A small language, generated without files: sentences whose entropy is known, so that a language model can be compared
//! with the best possible one.
//!
//! `these quiet birds that help a giant follow every cat .`: verbs agree with their subject, also behind a clause with
//! a noun of another number, which takes attention to earlier words. Where the grammar allows several words they are
//! equally probable, so the entropy of a word is the logarithm of their number.

mod grammar;
mod judged;
mod paired;

use std::collections::BTreeMap;

use crate::dataset::{Dataset, Split, check_index};
use crate::error::{DataError, Result};
use crate::rng::{Purpose, below, rng_for};
use grammar::{State, WORDS};

pub use judged::{JudgedSentence, JudgedSentences};
pub use paired::{PairedSentences, SentencePair};

/// The settings of a [`SentencesDataset`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentencesConfig {
    /// The split. Its texts follow from streams of random numbers of their own.
    pub split: Split,
    /// The number of texts.
    pub texts: usize,
    /// The predictions of a text; at least 1.
    pub length: usize,
    /// The seed.
    pub seed: u64,
}

/// Texts of sentences, as sequences of tokens that begin with a full stop. Each word is a token.
#[derive(Debug, Clone)]
pub struct SentencesDataset {
    name: String,
    config: SentencesConfig,
}

impl SentencesDataset {
    /// Creates a split.
    ///
    /// # Errors
    /// If there is no text or no prediction.
    pub fn new(config: SentencesConfig) -> Result<Self> {
        if config.texts == 0 || config.length == 0 {
            let reason =
                format!("{} texts of {} predictions; both need at least 1", config.texts, config.length);
            return Err(DataError::config("sentences", reason));
        }
        Ok(Self { name: format!("sentences/{}", config.split), config })
    }

    /// Returns the size of the vocabulary.
    #[must_use]
    pub fn vocab() -> usize {
        WORDS.len()
    }

    /// Returns the words, in the order of their tokens.
    #[must_use]
    pub fn words() -> &'static [&'static str] {
        WORDS
    }

    /// Returns the mean entropy of the predictions of a text of this length, in nats: the loss of the best possible
    /// model.
    #[must_use]
    pub fn entropy(length: usize) -> f64 {
        let mut states = BTreeMap::from([(State::START, 1.0)]);
        let mut total = 0.0;
        for _ in 0..length {
            let mut next = BTreeMap::new();
            for (state, probability) in states {
                let options = state.options();
                total += probability * (options.len() as f64).ln();
                for (_, following) in &options {
                    *next.entry(*following).or_insert(0.0) += probability / options.len() as f64;
                }
            }
            states = next;
        }
        total / length.max(1) as f64
    }
}

impl Dataset for SentencesDataset {
    type Item = Vec<u32>;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.config.texts
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<Vec<u32>> {
        check_index(&self.name, index, self.len())?;
        let purpose = match self.config.split {
            Split::Train => Purpose::TrainSentences,
            Split::Test => Purpose::TestSentences,
        };
        let mut rng = rng_for(self.config.seed, purpose, 0, index as u64);
        let (mut state, mut tokens) = (State::START, vec![0]);
        for _ in 0..self.config.length {
            let options = state.options();
            let (word, next) = options[below(&mut rng, options.len())];
            tokens.push(word);
            state = next;
        }
        Ok(tokens)
    }

    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(&self.name, index, self.len())?;
        Ok(self.config.length as f32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(split: Split, texts: usize, length: usize) -> SentencesDataset {
        SentencesDataset::new(SentencesConfig { split, texts, length, seed: 3 }).expect("sound")
    }

    #[test]
    fn sentences_agree_with_their_subjects() {
        let text = dataset(Split::Train, 40, 300);
        let mut clauses = 0;
        for index in 0..text.len() {
            let tokens = text.get(index, 0).expect("is there");
            assert_eq!((tokens.len(), tokens[0]), (301, 0));
            let words: Vec<&str> = tokens[1..].iter().map(|token| WORDS[*token as usize]).collect();
            let words = words.join(" ");
            let sentences: Vec<&str> = words.split_inclusive(" .").collect();
            // The last one may be cut.
            for sentence in &sentences[..sentences.len() - 1] {
                let words: Vec<&str> = sentence.split_whitespace().collect();
                let several = ["some", "two", "these", "many"].contains(&words[0]);
                let verb = words[..words.len() - 1].iter().rposition(|word| {
                    let place = WORDS.iter().position(|known| known == word);
                    place.is_some_and(|place| place >= 34)
                });
                let verb = words[verb.expect("each sentence has a verb")];
                assert_eq!(!verb.ends_with('s'), several, "{sentence}");
                clauses += usize::from(words.contains(&"that"));
            }
        }
        assert!(clauses > 20, "{clauses} clauses");
        assert_eq!(text.get(3, 0).expect("is there"), text.get(3, 9).expect("is there"), "no epoch");
        assert_ne!(
            text.get(3, 0).expect("is there"),
            dataset(Split::Test, 9, 300).get(3, 0).expect("is there")
        );
    }

    #[test]
    fn the_entropy_is_that_of_the_texts() {
        assert_eq!(SentencesDataset::entropy(1), 8_f64.ln());
        // By hand: eight determiners, then sixteen adjectives and nouns.
        assert!((SentencesDataset::entropy(2) - (8_f64.ln() + 16_f64.ln()) / 2.0).abs() < 1e-12);
        let (length, texts) = (32, 400);
        let all = dataset(Split::Test, texts, length);
        let mut total = 0.0;
        for index in 0..texts {
            let mut state = State::START;
            for token in &all.get(index, 0).expect("is there")[1..] {
                let options = state.options();
                total += (options.len() as f64).ln();
                state = options.iter().find(|(word, _)| word == token).expect("the grammar allows it").1;
            }
        }
        let found = total / (texts * length) as f64;
        let exact = SentencesDataset::entropy(length);
        assert!((found - exact).abs() < 0.02, "{found} and {exact}");
    }

    #[test]
    fn sizes_of_none_are_refused() {
        let config = SentencesConfig { split: Split::Train, texts: 0, length: 4, seed: 0 };
        assert!(SentencesDataset::new(config).is_err());
        assert_eq!(SentencesDataset::vocab(), 46);
    }
}
