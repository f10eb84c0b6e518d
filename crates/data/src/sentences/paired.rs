//! Sentences with their translations into a second generated language.
//!
//! | | `.` |
//! |---|---|
//! | `a small robot that helps two birds sees every cat .` | `ol robo mil ke duas aves ajudo toda gata vido .` |
//!
//! Adjectives follow their nouns, verbs end their clauses, and determiners agree with the gender of their noun, which the
//! source does not show. Each sentence has one translation, so the entropy of a translation is 0.

use super::grammar::{State, WORDS};
use super::{SentencesConfig, SentencesDataset};
use crate::dataset::{Dataset, Split, check_index};
use crate::error::Result;
use crate::rng::{Purpose, below, rng_for};

/// A sentence and its translation, by their tokens in [`PairedSentences::words`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SentencePair {
    /// The sentence.
    pub source: Vec<u32>,
    /// Its translation.
    pub target: Vec<u32>,
}

/// The words of the second language but the full stop, in the order of the words that they translate: determiners for
/// nouns of both genders, then one for each other word.
const DETERMINERS: [[&str; 2]; 8] = [
    ["ol", "ola"],
    ["uno", "una"],
    ["teso", "tesa"],
    ["todo", "toda"],
    ["algos", "algas"],
    ["duos", "duas"],
    ["tesos", "tesas"],
    ["multos", "multas"],
];
const OTHERS: [&str; 36] = [
    "mil", "grand", "ruj", "verd", "kvet", "oldan", "lumin", "stran", // adjectives
    "robo", "gata", "fil", "mara", "pikto", "ave", "tichero", "giga", // nouns of one
    "robos", "gatas", "fils", "maras", "piktos", "aves", "ticheros", "gigas", // nouns of several
    "vido", "sego", "ajudo", "trovo", "voko", "pento", // what one does
    "vidan", "segan", "ajudan", "trovan", "vokan", "pentan", // what several do
];
const THAT: &str = "ke";

/// The tokens of [`WORDS`] at which groups of words begin.
const FIRST_DETERMINER: u32 = 2;
const FIRST_ADJECTIVE: u32 = 10;
const FIRST_NOUN: u32 = 18;
const FIRST_VERB: u32 = 34;

/// Sentences of the language of [`SentencesDataset`] with their translations.
#[derive(Debug, Clone)]
pub struct PairedSentences {
    name: String,
    config: SentencesConfig,
}

impl PairedSentences {
    /// Creates a split of `texts` pairs.
    ///
    /// # Errors
    /// If there is no pair.
    pub fn new(split: Split, texts: usize, seed: u64) -> Result<Self> {
        let config = SentencesConfig { split, texts, length: 1, seed };
        SentencesDataset::new(config)?;
        Ok(Self { name: format!("paired-sentences/{split}"), config })
    }

    /// Returns the words of both languages, in the order of their tokens.
    #[must_use]
    pub fn words() -> Vec<&'static str> {
        let determiners = DETERMINERS.iter().flatten().copied();
        WORDS.iter().copied().chain([THAT]).chain(determiners).chain(OTHERS).collect()
    }

    /// The longest sentence of either language, in words.
    pub const LONGEST: usize = 13;
}

/// The token of `ke`, which the other words of the second language follow.
fn that() -> u32 {
    WORDS.len() as u32
}

/// The translation of a determiner in front of a noun.
fn determiner(word: u32, noun: u32) -> u32 {
    let gender = (noun - FIRST_NOUN) % 2;
    that() + 1 + 2 * (word - FIRST_DETERMINER) + gender
}

/// The translation of an adjective, a noun or a verb.
fn other(word: u32) -> u32 {
    that() + 1 + 2 * DETERMINERS.len() as u32 + word - FIRST_ADJECTIVE
}

/// Translates the group of words at the front, a determiner with its noun. Returns the words behind it.
fn group<'w>(words: &'w [u32], target: &mut Vec<u32>) -> &'w [u32] {
    let noun = words.iter().position(|word| (FIRST_NOUN..FIRST_VERB).contains(word)).unwrap_or(0);
    target.extend([determiner(words[0], words[noun]), other(words[noun])]);
    target.extend(words[1..noun].iter().map(|adjective| other(*adjective)));
    &words[noun + 1..]
}

/// Translates a sentence of the grammar.
fn translate(sentence: &[u32]) -> Vec<u32> {
    let mut target = Vec::new();
    let mut rest = group(sentence, &mut target);
    if let [1, verb, clause @ ..] = rest {
        target.push(that());
        rest = group(clause, &mut target);
        target.push(other(*verb));
    }
    if let [verb, object @ ..] = rest {
        rest = group(object, &mut target);
        target.push(other(*verb));
    }
    // The full stop is a word of both languages.
    target.extend(rest);
    target
}

impl Dataset for PairedSentences {
    type Item = SentencePair;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.config.texts
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<SentencePair> {
        check_index(&self.name, index, self.len())?;
        let purpose = match self.config.split {
            Split::Train => Purpose::TrainPair,
            Split::Test => Purpose::TestPair,
        };
        let mut rng = rng_for(self.config.seed, purpose, 0, index as u64);
        let (mut state, mut source) = (State::START, Vec::new());
        while source.is_empty() || state != State::START {
            let options = state.options();
            let (word, next) = options[below(&mut rng, options.len())];
            source.push(word);
            state = next;
        }
        let target = translate(&source);
        Ok(SentencePair { source, target })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_translated_word_by_word_in_another_order() {
        let words = PairedSentences::words();
        assert_eq!(words.len(), 46 + 1 + 16 + 36);
        let distinct: std::collections::BTreeSet<_> = words.iter().collect();
        assert_eq!(distinct.len(), words.len());
        let tokens = |text: &str| -> Vec<u32> {
            let token = |word| words.iter().position(|known| *known == word).expect(word) as u32;
            text.split_whitespace().map(token).collect()
        };
        for (source, target) in [
            ("every cat sees a robot .", "toda gata ol robo vido ."),
            (
                "a small robot that helps two birds sees every cat .",
                "ol robo mil ke duas aves ajudo toda gata vido .",
            ),
            ("many giants paint these old children .", "multas gigas tesos fils oldan pentan ."),
        ] {
            let found: Vec<&str> =
                translate(&tokens(source)).iter().map(|word| words[*word as usize]).collect();
            assert_eq!(found.join(" "), target, "{source}");
        }
        let all = PairedSentences::new(Split::Train, 300, 1).expect("sound");
        let pairs: Vec<SentencePair> = (0..300).map(|index| all.get(index, 0).expect("is there")).collect();
        let longest = pairs.iter().map(|pair| pair.source.len().max(pair.target.len())).max();
        assert_eq!(longest, Some(PairedSentences::LONGEST));
        assert!(pairs.iter().all(|pair| pair.source.len() == pair.target.len()));
    }
}
