//! BLEU (Papineni et al. 2002) of a corpus, as sacreBLEU computes it (Post 2018).

use std::collections::BTreeMap;

/// The orders of n-grams.
const ORDERS: usize = 4;

/// The counts that a BLEU score follows from. Those of parts of a corpus add up; scores do not.
///
/// Texts are compared detokenised: they are cut into words by sacreBLEU's tokenizer 13a here, so scores do not depend on
/// the tokens of a model.
///
/// ```
/// use phalanx_text::BleuCounts;
///
/// let mut counts = BleuCounts::default();
/// counts.add("The cat sat on the mat.", "The cat sat on a mat.");
/// counts.add("Hello, world!", "Hello, world!");
/// assert!((counts.score() - 63.40).abs() < 0.01, "{}", counts.score());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct BleuCounts {
    /// N-grams of translations that their references have, too, for n from 1 to 4.
    pub matches: [f64; ORDERS],
    /// N-grams of translations.
    pub totals: [f64; ORDERS],
    /// Words of translations.
    pub translated: f64,
    /// Words of references.
    pub reference: f64,
}

impl BleuCounts {
    /// The settings of the score, in sacreBLEU's notation.
    pub const SIGNATURE: &'static str = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp";

    /// Adds a translation and its reference.
    pub fn add(&mut self, translation: &str, reference: &str) {
        let (translation, reference) = (words(translation), words(reference));
        self.translated += translation.len() as f64;
        self.reference += reference.len() as f64;
        for order in 1..=ORDERS {
            let (found, known) = (grams(&translation, order), grams(&reference, order));
            let matches: usize =
                found.iter().map(|(gram, count)| *count.min(known.get(gram).unwrap_or(&0))).sum();
            self.matches[order - 1] += matches as f64;
            self.totals[order - 1] += translation.len().saturating_sub(order - 1) as f64;
        }
    }

    /// Returns the counts as numbers that add up: matches, totals, and the words of both sides.
    #[must_use]
    pub fn numbers(&self) -> [f64; 10] {
        let mut numbers = [0.0; 10];
        numbers[..ORDERS].copy_from_slice(&self.matches);
        numbers[ORDERS..2 * ORDERS].copy_from_slice(&self.totals);
        numbers[8..].copy_from_slice(&[self.translated, self.reference]);
        numbers
    }

    /// Returns the counts of [`BleuCounts::numbers`].
    #[must_use]
    pub fn of_numbers(numbers: &[f64; 10]) -> Self {
        let mut counts = Self { translated: numbers[8], reference: numbers[9], ..Self::default() };
        counts.matches.copy_from_slice(&numbers[..ORDERS]);
        counts.totals.copy_from_slice(&numbers[ORDERS..2 * ORDERS]);
        counts
    }

    /// Returns the score, from 0 to 100. An order without a match counts as half a match, the next one as a quarter, and
    /// so on ("exp").
    #[must_use]
    pub fn score(&self) -> f64 {
        if self.matches.iter().all(|matches| *matches == 0.0) || self.totals.contains(&0.0) {
            return 0.0;
        }
        let mut smoothed = 1.0;
        let logarithms = self.matches.iter().zip(self.totals).map(|(matches, total)| {
            if *matches > 0.0 {
                return (100.0 * matches / total).ln();
            }
            smoothed *= 2.0;
            (100.0 / (smoothed * total)).ln()
        });
        let mean = logarithms.sum::<f64>() / ORDERS as f64;
        let brevity = match self.translated < self.reference {
            true => (1.0 - self.reference / self.translated).exp(),
            false => 1.0,
        };
        brevity * mean.exp()
    }
}

fn grams(words: &[String], order: usize) -> BTreeMap<&[String], usize> {
    let mut grams = BTreeMap::new();
    words.windows(order).for_each(|gram| *grams.entry(gram).or_insert(0) += 1);
    grams
}

/// Cuts a text into words by the rules of mteval-v13a.
fn words(text: &str) -> Vec<String> {
    let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if text.contains('&') {
        for (entity, character) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            text = text.replace(entity, character);
        }
    }
    let is_mark =
        |letter: char| matches!(letter, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/');
    let marked: String = format!(" {text} ")
        .chars()
        .flat_map(|letter| match is_mark(letter) {
            true => vec![' ', letter, ' '],
            false => vec![letter],
        })
        .collect();
    let is_point = |letter: char| letter == '.' || letter == ',';
    let is_digit = |letter: char| letter.is_ascii_digit();
    let spaced = pairs(&marked, |one, two| !is_digit(one) && is_point(two), |one, two| [one, ' ', two, ' ']);
    let spaced = pairs(&spaced, |one, two| is_point(one) && !is_digit(two), |one, two| [' ', one, ' ', two]);
    let spaced = pairs(&spaced, |one, two| is_digit(one) && two == '-', |one, two| [one, ' ', two, ' ']);
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// Replaces pairs of characters that do not overlap, from the front.
fn pairs(
    text: &str,
    is_pair: impl Fn(char, char) -> bool,
    replaced: impl Fn(char, char) -> [char; 4],
) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(one) = letters.next() {
        match letters.next_if(|two| is_pair(one, *two)) {
            Some(two) => out.extend(replaced(one, two)),
            None => out.push(one),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_13a() {
        for (text, expected) in [
            ("Hello, world!", "Hello , world !"),
            ("It costs $3.50, or 1,000-2,000 (a-b).", "It costs $ 3.50 , or 1,000 - 2,000 ( a-b ) ."),
            ("a.b &quot;c&quot; d/e", "a . b \" c \" d / e"),
            ("x...y 5. z", "x . . . y 5 . z"),
        ] {
            assert_eq!(words(text).join(" "), expected);
        }
    }

    #[test]
    fn scores_are_those_of_sacrebleu() {
        let score = |pairs: &[(&str, &str)]| {
            let mut counts = BleuCounts::default();
            pairs.iter().for_each(|(translation, reference)| counts.add(translation, reference));
            assert_eq!(BleuCounts::of_numbers(&counts.numbers()), counts);
            counts.score()
        };
        for (pairs, expected) in SCORES {
            let found = score(pairs);
            assert!((found - expected).abs() < 1e-9, "{pairs:?}: {found} and {expected}");
        }
    }

    /// Pairs of translations and references, with the scores of sacreBLEU 2.6.0 with the default settings.
    const SCORES: [(&[(&str, &str)], f64); 5] = [
        (
            &[("The cat sat on the mat.", "The cat sat on a mat."), ("Hello, world!", "Hello, world!")],
            63.404662770469,
        ),
        (&[("the the the the", "the cat is on the mat")], 11.521590992287),
        (
            &[("Datei öffnen", "Die Datei öffnen"), ("%s: nicht gefunden", "%s nicht gefunden.")],
            27.890014303844,
        ),
        (&[("one two", "one two")], 0.0),
        (&[("nothing here is the same", "quite other words stand there")], 0.0),
    ];
}
