//! The Unigram language model (Kudo 2018): pieces with probabilities under which the words are likely.
//!
//! It starts with frequent substrings, and alternates between expectation maximisation and dropping the pieces whose loss
//! costs the least likelihood. All sums run in the order of the words, in parts that do not depend on the number of threads.

use std::collections::{BTreeMap, HashMap};

use super::WordCounts;

/// The longest piece, in characters.
const LONGEST: usize = 16;

/// The largest number of pieces at the start.
const SEEDS: usize = 1_000_000;

/// Rounds of expectation maximisation between two prunings.
const ROUNDS: usize = 2;

/// The fraction of the pieces that a pruning keeps.
const KEPT: f64 = 0.75;

/// The number of parts of the words; each is summed apart, and the sums are added in order.
const PARTS: usize = 64;

/// The score of a character without a piece, below that of the worst piece.
const UNKNOWN: f64 = -10.0;

/// The characters that have a piece in any case.
pub(super) const ASCII: std::ops::RangeInclusive<u8> = b'!'..=b'~';

/// A word as characters with its frequency.
struct Word {
    letters: Vec<char>,
    count: f64,
}

/// Pieces with the logarithms of their probabilities.
struct Model {
    pieces: Vec<(String, f64)>,
    numbers: HashMap<Vec<char>, usize>,
    longest: usize,
    /// The smallest logarithm.
    worst: f64,
}

/// A piece within a word.
#[derive(Clone, Copy)]
struct Edge {
    from: usize,
    to: usize,
    piece: Option<usize>,
    score: f64,
}

/// Learns up to `size` pieces; all characters are among them while there is room.
pub(super) fn learn(counts: &WordCounts, size: usize) -> Vec<(String, f64)> {
    let words: Vec<Word> = counts
        .words()
        .map(|(word, count)| Word { letters: word.chars().collect(), count: count as f64 })
        .collect();
    let mut model = Model::of(seeds(&words));
    // A last pruning to the exact size follows, so the others leave a tenth more.
    let target = size + size / 10;
    loop {
        for _ in 0..ROUNDS {
            let expected = over_words(&words, model.pieces.len(), |word, sums| model.expect(word, sums));
            model = model.maximise(&expected);
        }
        if model.pieces.len() <= target {
            break;
        }
        let kept = ((model.pieces.len() as f64 * KEPT) as usize).max(target);
        model = model.prune(&words, kept);
    }
    finish(&model.pieces, &words, size)
}

/// Sums over the words, in parts on all cores.
fn over_words(words: &[Word], len: usize, add: impl Fn(&Word, &mut [f64]) + Sync) -> Vec<f64> {
    let parts: Vec<&[Word]> = words.chunks(words.len().div_ceil(PARTS).max(1)).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(parts.len().max(1));
    let mut total = vec![0.0; len];
    for group in parts.chunks(threads) {
        let sums = std::thread::scope(|scope| {
            let running: Vec<_> = group
                .iter()
                .map(|part| {
                    let add = &add;
                    scope.spawn(move || {
                        let mut sums = vec![0.0; len];
                        part.iter().for_each(|word| add(word, &mut sums));
                        sums
                    })
                })
                .collect();
            let joined = running
                .into_iter()
                .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            joined.collect::<Vec<_>>()
        });
        for part in sums {
            total.iter_mut().zip(part).for_each(|(total, sum)| *total += sum);
        }
    }
    total
}

/// Returns all characters, and the substrings that occur twice, those first that cover the most characters.
fn seeds(words: &[Word]) -> Vec<(String, f64)> {
    let mut found: HashMap<&[char], f64> = HashMap::new();
    for word in words {
        let letters = &word.letters;
        for from in 0..letters.len() {
            for to in from + 1..=letters.len().min(from + LONGEST) {
                *found.entry(&letters[from..to]).or_default() += word.count;
            }
        }
    }
    let (single, mut longer): (Vec<_>, Vec<_>) = found.into_iter().partition(|(piece, _)| piece.len() == 1);
    longer.retain(|(_, count)| *count >= 2.0);
    let mut longer: Vec<(f64, &[char])> =
        longer.into_iter().map(|(piece, count)| (count * piece.len() as f64, piece)).collect();
    longer.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(other.1)));
    longer.truncate(SEEDS);
    let mut pieces: Vec<(f64, &[char])> = single.into_iter().map(|(piece, count)| (count, piece)).collect();
    pieces.sort_unstable_by(|one, other| one.1.cmp(other.1));
    pieces.extend(longer);
    let sum: f64 = pieces.iter().map(|(score, _)| score).sum();
    pieces.into_iter().map(|(score, piece)| (piece.iter().collect(), (score / sum).ln())).collect()
}

impl Model {
    fn of(pieces: Vec<(String, f64)>) -> Self {
        let letters = |piece: &str| piece.chars().collect::<Vec<char>>();
        let numbers: HashMap<Vec<char>, usize> =
            pieces.iter().enumerate().map(|(number, (piece, _))| (letters(piece), number)).collect();
        let longest = numbers.keys().map(Vec::len).max().unwrap_or(1);
        let worst = pieces.iter().map(|(_, score)| *score).fold(0.0, f64::min);
        Self { pieces, numbers, longest, worst }
    }

    /// The pieces within letters, without `hidden`, by their begin. A character without a piece is an edge of none.
    fn edges(&self, letters: &[char], hidden: Option<usize>) -> Vec<Edge> {
        let mut edges = Vec::new();
        for from in 0..letters.len() {
            for to in from + 1..=letters.len().min(from + self.longest) {
                let found = self.numbers.get(&letters[from..to]).filter(|&&number| Some(number) != hidden);
                match found {
                    Some(&number) => {
                        edges.push(Edge { from, to, piece: Some(number), score: self.pieces[number].1 });
                    }
                    None if to == from + 1 => {
                        let score = self.worst + UNKNOWN;
                        edges.push(Edge { from, to, piece: None, score });
                    }
                    None => {}
                }
            }
        }
        edges
    }

    /// Adds the expected number of each piece in a word, over all ways to cut it.
    fn expect(&self, word: &Word, sums: &mut [f64]) {
        let len = word.letters.len();
        let edges = self.edges(&word.letters, None);
        let (mut before, mut after) = (vec![f64::NEG_INFINITY; len + 1], vec![f64::NEG_INFINITY; len + 1]);
        (before[0], after[len]) = (0.0, 0.0);
        for edge in &edges {
            before[edge.to] = log_add(before[edge.to], before[edge.from] + edge.score);
        }
        for edge in edges.iter().rev() {
            after[edge.from] = log_add(after[edge.from], after[edge.to] + edge.score);
        }
        for edge in &edges {
            if let Some(piece) = edge.piece {
                let chance = before[edge.from] + edge.score + after[edge.to] - before[len];
                sums[piece] += word.count * chance.exp();
            }
        }
    }

    /// Returns the pieces that are expected often enough, with probabilities by their expected numbers under a sparse prior.
    fn maximise(&self, expected: &[f64]) -> Self {
        let pieces = self.pieces.iter().zip(expected);
        let kept: Vec<(&String, f64)> = pieces
            .filter(|(_, expected)| **expected >= 0.5)
            .map(|((piece, _), number)| (piece, *number))
            .collect();
        let sum: f64 = kept.iter().map(|(_, number)| number).sum();
        let all = digamma(sum);
        Self::of(kept.into_iter().map(|(piece, number)| (piece.clone(), digamma(number) - all)).collect())
    }

    /// The pieces of the most probable way to cut letters.
    fn best(&self, letters: &[char], hidden: Option<usize>) -> Vec<Option<usize>> {
        let mut best: Vec<(f64, Option<Edge>)> = vec![(f64::NEG_INFINITY, None); letters.len() + 1];
        best[0].0 = 0.0;
        for edge in self.edges(letters, hidden) {
            let score = best[edge.from].0 + edge.score;
            if score > best[edge.to].0 {
                best[edge.to] = (score, Some(edge));
            }
        }
        let (mut pieces, mut at) = (Vec::new(), letters.len());
        while let Some(edge) = best[at].1 {
            pieces.push(edge.piece);
            at = edge.from;
        }
        pieces
    }

    /// Keeps `kept` pieces: those of one character, and of the others those whose loss would cost the most.
    fn prune(&self, words: &[Word], kept: usize) -> Self {
        let used = over_words(words, self.pieces.len(), |word, sums| {
            for piece in self.best(&word.letters, None).into_iter().flatten() {
                sums[piece] += word.count;
            }
        });
        let sum: f64 = used.iter().sum();
        let mut keep = vec![false; self.pieces.len()];
        let mut candidates = Vec::new();
        for (number, (piece, _)) in self.pieces.iter().enumerate() {
            let letters: Vec<char> = piece.chars().collect();
            if letters.len() == 1 {
                keep[number] = true;
            } else if used[number] > 0.0 {
                let others: Vec<usize> = self.best(&letters, Some(number)).into_iter().flatten().collect();
                let own = used[number];
                let all = (sum + own * (others.len() as f64 - 1.0)).ln();
                let without: f64 = others.iter().map(|&other| (used[other] + own).ln() - all).sum();
                candidates.push((own / sum * (own.ln() - sum.ln() - without), number));
            }
        }
        candidates.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then_with(|| one.1.cmp(&other.1)));
        let room = kept.saturating_sub(keep.iter().filter(|keep| **keep).count());
        candidates.iter().take(room).for_each(|(_, number)| keep[*number] = true);
        let pieces = self.pieces.iter().zip(keep).filter(|(_, keep)| *keep).map(|(piece, _)| piece.clone());
        Self::of(pieces.collect())
    }
}

/// Chooses `size` pieces: the characters, the most frequent first if there is no room for all, then the most probable others.
fn finish(pieces: &[(String, f64)], words: &[Word], size: usize) -> Vec<(String, f64)> {
    let worst = pieces.iter().map(|(_, score)| *score).fold(0.0, f64::min);
    // Without pieces for ASCII, the name of a byte, such as `<0x41>`, would be cut as that byte.
    let mut letters: BTreeMap<char, f64> = ASCII.map(|letter| (char::from(letter), 0.0)).collect();
    for word in words {
        word.letters.iter().for_each(|letter| *letters.entry(*letter).or_default() += word.count);
    }
    let scores: HashMap<&str, f64> = pieces.iter().map(|(piece, score)| (piece.as_str(), *score)).collect();
    let mut letters: Vec<(char, f64)> = letters.into_iter().collect();
    letters.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut chosen: Vec<(String, f64)> = letters
        .into_iter()
        .take(size)
        .map(|(letter, _)| {
            let piece = letter.to_string();
            let score = scores.get(piece.as_str()).copied().unwrap_or(worst);
            (piece, score)
        })
        .collect();
    let mut others: Vec<(String, f64)> =
        pieces.iter().filter(|(piece, _)| piece.chars().nth(1).is_some()).cloned().collect();
    others.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    let room = size - chosen.len();
    chosen.extend(others.into_iter().take(room));
    chosen.sort_by(|one, other| other.1.total_cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    chosen
}

/// log(exp(a) + exp(b))
fn log_add(one: f64, other: f64) -> f64 {
    let (low, high) = if one < other { (one, other) } else { (other, one) };
    if low == f64::NEG_INFINITY { high } else { high + (low - high).exp().ln_1p() }
}

/// The derivative of log Γ, by the recurrence and the asymptotic series.
fn digamma(mut x: f64) -> f64 {
    let mut result = 0.0;
    while x < 7.0 {
        result -= 1.0 / x;
        x += 1.0;
    }
    x -= 0.5;
    let square = 1.0 / (x * x);
    let fourth = square * square;
    result + x.ln() + square / 24.0 - 7.0 / 960.0 * fourth + 31.0 / 8064.0 * fourth * square
        - 127.0 / 30720.0 * fourth * fourth
}
