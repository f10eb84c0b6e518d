//! Byte-pair merges: the most frequent pair of neighbouring pieces becomes a piece, again and again.
//!
//! Of equally frequent pairs the one with the smaller pieces, by number, is first. So the result depends on no order of
//! words, threads or hashes.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};

use super::{PieceKind, WordCounts};
use crate::tokenizer::byte_letter;

/// The mark of a piece that continues a word.
const CONTINUES: &str = "##";

/// The pieces of one character.
pub(super) struct Alphabet {
    pieces: Vec<String>,
    numbers: HashMap<String, u32>,
    marks_continuations: bool,
}

/// Learned pieces, those of one character first, and the merges that make the others.
pub(super) struct Merged {
    pub(super) pieces: Vec<String>,
    pub(super) merges: Vec<[String; 2]>,
}

impl Alphabet {
    /// Collects the characters of words; for bytes all 256.
    pub(super) fn of(counts: &WordCounts) -> Self {
        let marks_continuations = counts.kind() == PieceKind::WordPiece;
        let mut found = BTreeSet::new();
        if counts.kind() == PieceKind::Bpe {
            found.extend((0..=255).map(|byte| byte_letter(byte).to_string()));
        }
        for (word, _) in counts.words() {
            found.extend(letters(word, marks_continuations));
        }
        let pieces: Vec<String> = found.into_iter().collect();
        let numbers = pieces.iter().cloned().zip(0..).collect();
        Self { pieces, numbers, marks_continuations }
    }

    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }
}

/// The characters of a word as pieces.
fn letters(word: &str, marks_continuations: bool) -> impl Iterator<Item = String> {
    word.chars().enumerate().map(move |(at, letter)| match at > 0 && marks_continuations {
        true => format!("{CONTINUES}{letter}"),
        false => letter.to_string(),
    })
}

type Pair = (u32, u32);

/// A pair in the queue: the most frequent first, then the smallest.
#[derive(PartialEq, Eq)]
struct Candidate {
    count: i64,
    pair: Pair,
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.count.cmp(&other.count).then_with(|| other.pair.cmp(&self.pair))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The words as pieces, with the frequencies of neighbouring pairs.
struct Words {
    words: Vec<Vec<u32>>,
    counts: Vec<i64>,
    pairs: HashMap<Pair, i64>,
    /// The words that have, or had, a pair.
    places: HashMap<Pair, BTreeSet<u32>>,
}

/// Learns pieces up to `size`, those of one character included.
pub(super) fn learn(counts: &WordCounts, alphabet: &Alphabet, size: usize) -> Merged {
    let mut words = Words::new(counts, alphabet);
    let mut merged = Merged { pieces: alphabet.pieces.clone(), merges: Vec::new() };
    let mut numbers = alphabet.numbers.clone();
    let mut queue: BinaryHeap<Candidate> =
        words.pairs.iter().map(|(&pair, &count)| Candidate { count, pair }).collect();
    while merged.pieces.len() < size {
        let Some(top) = queue.pop() else { break };
        let now = words.pairs.get(&top.pair).copied().unwrap_or_default();
        if now != top.count {
            if now > 0 {
                queue.push(Candidate { count: now, ..top });
            }
            continue;
        }
        // A piece that occurs once saves nothing.
        if now < 2 {
            break;
        }
        let [left, right] = [top.pair.0, top.pair.1].map(|piece| merged.pieces[piece as usize].clone());
        let tail = right.strip_prefix(CONTINUES).filter(|_| alphabet.marks_continuations).unwrap_or(&right);
        let piece = format!("{left}{tail}");
        let next = merged.pieces.len() as u32;
        let number = *numbers.entry(piece.clone()).or_insert(next);
        if number == next {
            merged.pieces.push(piece);
        }
        merged.merges.push([left, right]);
        for pair in words.merge(top.pair, number) {
            let count = words.pairs[&pair];
            queue.push(Candidate { count, pair });
        }
    }
    merged
}

impl Words {
    fn new(counts: &WordCounts, alphabet: &Alphabet) -> Self {
        let mut words =
            Self { words: Vec::new(), counts: Vec::new(), pairs: HashMap::new(), places: HashMap::new() };
        for (word, count) in counts.words() {
            let pieces = letters(word, alphabet.marks_continuations);
            let pieces: Vec<u32> = pieces.map(|letter| alphabet.numbers[&letter]).collect();
            let (place, count) = (words.words.len() as u32, i64::try_from(count).unwrap_or(i64::MAX));
            for pair in pieces.windows(2) {
                let pair = (pair[0], pair[1]);
                *words.pairs.entry(pair).or_default() += count;
                words.places.entry(pair).or_default().insert(place);
            }
            words.words.push(pieces);
            words.counts.push(count);
        }
        words
    }

    /// Replaces a pair by a piece in all words. Returns the pairs that became more frequent.
    fn merge(&mut self, pair: Pair, piece: u32) -> BTreeSet<Pair> {
        let mut changes: BTreeMap<Pair, i64> = BTreeMap::new();
        for place in self.places.remove(&pair).unwrap_or_default() {
            let count = self.counts[place as usize];
            let word = &mut self.words[place as usize];
            let pairs = |word: &[u32]| word.windows(2).map(|pair| (pair[0], pair[1])).collect::<Vec<Pair>>();
            let before = pairs(word);
            if !before.contains(&pair) {
                continue;
            }
            replace(word, pair, piece);
            let after = pairs(word);
            before.iter().for_each(|&old| *changes.entry(old).or_default() -= count);
            for new in after {
                *changes.entry(new).or_default() += count;
                if new.0 == piece || new.1 == piece {
                    self.places.entry(new).or_default().insert(place);
                }
            }
        }
        let mut grown = BTreeSet::new();
        for (changed, by) in changes {
            *self.pairs.entry(changed).or_default() += by;
            if by > 0 {
                grown.insert(changed);
            }
        }
        self.pairs.remove(&pair);
        grown.remove(&pair);
        grown
    }
}

/// Replaces a pair by a piece in a word, from its beginning on.
fn replace(word: &mut Vec<u32>, pair: Pair, piece: u32) {
    let (mut read, mut write) = (0, 0);
    while read < word.len() {
        let is_pair = word[read] == pair.0 && word.get(read + 1) == Some(&pair.1);
        word[write] = if is_pair { piece } else { word[read] };
        read += if is_pair { 2 } else { 1 };
        write += 1;
    }
    word.truncate(write);
}
