//! Sentences that are to be judged: of each, whether its verbs agree with their subjects.

use super::grammar::{State, disagreeing};
use super::{SentencesConfig, SentencesDataset};
use crate::dataset::{Dataset, Split, check_index};
use crate::error::Result;
use crate::rng::{Purpose, below, rng_for};

/// A sentence and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedSentence {
    /// The words, by their tokens in [`SentencesDataset::words`].
    pub tokens: Vec<u32>,
    /// Its class, an index into [`JudgedSentences::CLASSES`].
    pub class: u32,
}

/// Single sentences of the language of [`SentencesDataset`]. In about half of them one verb has the wrong number, which only its subject
/// tells, words away. A perfect classifier is always right.
#[derive(Debug, Clone)]
pub struct JudgedSentences {
    name: String,
    config: SentencesConfig,
}

impl JudgedSentences {
    /// The names of the classes.
    pub const CLASSES: [&'static str; 2] = ["agrees", "disagrees"];

    /// Creates a split of `texts` sentences.
    ///
    /// # Errors
    /// If there is no text.
    pub fn new(split: Split, texts: usize, seed: u64) -> Result<Self> {
        let config = SentencesConfig { split, texts, length: 1, seed };
        SentencesDataset::new(config)?;
        Ok(Self { name: format!("judged-sentences/{split}"), config })
    }
}

impl Dataset for JudgedSentences {
    type Item = JudgedSentence;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.config.texts
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<JudgedSentence> {
        check_index(&self.name, index, self.len())?;
        let purpose = match self.config.split {
            Split::Train => Purpose::TrainJudgement,
            Split::Test => Purpose::TestJudgement,
        };
        let mut rng = rng_for(self.config.seed, purpose, 0, index as u64);
        let class = below(&mut rng, Self::CLASSES.len()) as u32;
        let (mut state, mut tokens) = (State::START, Vec::new());
        while tokens.is_empty() || state != State::START {
            let options = state.options();
            let (word, next) = options[below(&mut rng, options.len())];
            tokens.push(word);
            state = next;
        }
        if class == 1 {
            let verbs: Vec<usize> =
                (0..tokens.len()).filter(|at| disagreeing(tokens[*at]).is_some()).collect();
            let at = verbs[below(&mut rng, verbs.len())];
            tokens[at] = disagreeing(tokens[at]).unwrap_or(tokens[at]);
        }
        Ok(JudgedSentence { tokens, class })
    }
}

#[cfg(test)]
mod tests {
    use super::super::grammar::WORDS;
    use super::*;

    #[test]
    fn one_verb_of_a_wrong_sentence_has_the_wrong_number() {
        let all = JudgedSentences::new(Split::Train, 300, 5).expect("sound");
        let mut of_class = [0; 2];
        for index in 0..all.len() {
            let JudgedSentence { tokens, class } = all.get(index, 3).expect("is there");
            of_class[class as usize] += 1;
            // The grammar follows all words of a right sentence, and of a wrong one all up to a verb.
            let mut state = State::START;
            let stops = tokens.iter().position(|token| {
                let next = state.options().into_iter().find(|(word, _)| word == token);
                next.map(|(_, next)| state = next).is_none()
            });
            match stops {
                None => assert_eq!(class, 0, "{tokens:?}"),
                Some(at) => {
                    assert_eq!(class, 1, "{tokens:?}");
                    assert!(disagreeing(tokens[at]).is_some(), "{}", WORDS[tokens[at] as usize]);
                }
            }
            assert_eq!(*tokens.last().expect("words"), 0);
        }
        assert!(of_class.iter().all(|number| (120..180).contains(number)), "{of_class:?}");
    }
}
