//! The grammar: which words may follow, all equally probable.

/// The words, in the order of their tokens. The full stop is token 0, so that it can begin a text.
pub(super) const WORDS: &[&str] = &[
    ".", "that", "a", "one", "this", "every", "some", "two", "these", "many", // determiners from 2 on
    "small", "large", "red", "green", "quiet", "old", "bright", "strange", // adjectives from 10 on
    "robot", "cat", "child", "sailor", "painter", "bird", "teacher", "giant", // one of each from 18 on
    "robots", "cats", "children", "sailors", "painters", "birds", "teachers",
    "giants", // several from 26 on
    "sees", "follows", "helps", "finds", "calls", "paints", // what one does, from 34 on
    "see", "follow", "help", "find", "call", "paint", // what several do, from 40 on
];

const STOP: u32 = 0;
const THAT: u32 = 1;
/// Determiners of one, followed by as many of several.
const DETERMINERS: [u32; 2] = [2, 6];
const EACH_DETERMINER: u32 = 4;
const ADJECTIVES: u32 = 10;
const EACH_ADJECTIVE: u32 = 8;
const NOUNS: [u32; 2] = [18, 26];
const EACH_NOUN: u32 = 8;
const VERBS: [u32; 2] = [34, 40];
const EACH_VERB: u32 = 6;

/// Returns the verb that means the same for the other number of subjects; `None` for other words.
pub(super) fn disagreeing(word: u32) -> Option<u32> {
    let [one, several] = VERBS;
    match word {
        word if (one..one + EACH_VERB).contains(&word) => Some(word - one + several),
        word if (several..several + EACH_VERB).contains(&word) => Some(word - several + one),
        _ => None,
    }
}

/// One or several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Number {
    One,
    Several,
}

/// The place of a group of words in a sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Group {
    /// The one that acts.
    Subject,
    /// The one that the subject acts on in the clause, before the verb of the sentence.
    Clause { subject: Number },
    /// The one that the subject acts on.
    Object,
}

/// The kind of word that comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    /// A determiner.
    Determiner(Group),
    /// An adjective or a noun.
    Described(Group, Number),
    /// A noun, after an adjective.
    Noun(Group, Number),
    /// `that` with a clause, or the verb of the sentence.
    AfterSubject(Number),
    /// The verb of the clause.
    ClauseVerb(Number),
    /// The verb of the sentence, which agrees with its subject, however far away that is.
    Verb(Number),
    /// The full stop.
    Stop,
}

// The names of states are those of their words.
use Group::{Clause, Object, Subject};
use Number::{One, Several};

impl State {
    /// The state at the beginning of a sentence.
    pub(super) const START: Self = Self::Determiner(Subject);

    /// The words that may follow, each with the state behind it.
    pub(super) fn options(self) -> Vec<(u32, Self)> {
        let words = |first: u32, count: u32, next: Self| (first..first + count).map(move |word| (word, next));
        let verbs = |number: Number, next: Self| words(VERBS[number as usize], EACH_VERB, next);
        match self {
            Self::Determiner(group) => [One, Several]
                .into_iter()
                .flat_map(|number| {
                    let next = Self::Described(group, number);
                    words(DETERMINERS[number as usize], EACH_DETERMINER, next)
                })
                .collect(),
            Self::Described(group, number) => {
                let adjectives = words(ADJECTIVES, EACH_ADJECTIVE, Self::Noun(group, number));
                adjectives.chain(Self::Noun(group, number).options()).collect()
            }
            Self::Noun(group, number) => {
                let next = match group {
                    Subject => Self::AfterSubject(number),
                    Clause { subject } => Self::Verb(subject),
                    Object => Self::Stop,
                };
                words(NOUNS[number as usize], EACH_NOUN, next).collect()
            }
            Self::AfterSubject(number) => {
                let clause = (THAT, Self::ClauseVerb(number));
                std::iter::once(clause).chain(Self::Verb(number).options()).collect()
            }
            Self::ClauseVerb(subject) => verbs(subject, Self::Determiner(Clause { subject })).collect(),
            Self::Verb(number) => verbs(number, Self::Determiner(Object)).collect(),
            Self::Stop => vec![(STOP, Self::START)],
        }
    }
}
