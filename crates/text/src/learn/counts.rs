//! The words of texts with their frequencies.

use std::collections::BTreeMap;
use std::panic::resume_unwind;

use phalanx_data::{DataError, Result};
use serde_json::json;

use super::PieceKind;
use crate::tokenizer::Description;

/// The words of texts, cut and normalised as the tokenizer to be learned does it, with their frequencies.
#[derive(Debug)]
pub struct WordCounts {
    kind: PieceKind,
    cutter: tokenizers::Tokenizer,
    counts: BTreeMap<String, u64>,
}

/// The longest word of a tokenizer to be learned, in characters; longer ones are cut.
const LONGEST: usize = 64;

impl WordCounts {
    /// Starts counting for a kind of tokenizer.
    ///
    /// # Panics
    /// Never: the cutters are constants that the tests build.
    #[must_use]
    pub fn new(kind: PieceKind) -> Self {
        let (normalizer, pre_tokenizer) = super::cutting::cutting(kind);
        let model = json!({"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"});
        let json = Description { normalizer, pre_tokenizer, model, ..Description::default() }.text();
        let cutter = tokenizers::Tokenizer::from_bytes(json.as_bytes()).expect("a constant description");
        Self { kind, cutter, counts: BTreeMap::new() }
    }

    /// Adds the words of a text.
    ///
    /// # Errors
    /// If the text cannot be cut.
    pub fn add(&mut self, text: &str) -> Result<()> {
        for word in cut(&self.cutter, text)? {
            *self.counts.entry(word).or_default() += 1;
        }
        Ok(())
    }

    /// Adds the words of texts on all cores.
    ///
    /// # Errors
    /// If a text cannot be cut.
    pub fn add_all(&mut self, texts: &[String]) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(texts.len().max(1));
        let parts = texts.chunks(texts.len().div_ceil(threads).max(1));
        let cutter = &self.cutter;
        let counted = std::thread::scope(|scope| {
            let running: Vec<_> = parts.map(|part| scope.spawn(|| count(cutter, part))).collect();
            let joined =
                running.into_iter().map(|part| part.join().unwrap_or_else(|panic| resume_unwind(panic)));
            joined.collect::<Result<Vec<_>>>()
        })?;
        for (word, count) in counted.into_iter().flatten() {
            *self.counts.entry(word).or_default() += count;
        }
        Ok(())
    }

    /// The kind of tokenizer that they are for.
    #[must_use]
    pub fn kind(&self) -> PieceKind {
        self.kind
    }

    /// Returns true without words.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// The number of different words.
    #[must_use]
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// The words in ascending order.
    pub(super) fn words(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counts.iter().map(|(word, count)| (word.as_str(), *count))
    }
}

/// Counts the words of texts.
fn count(cutter: &tokenizers::Tokenizer, texts: &[String]) -> Result<BTreeMap<String, u64>> {
    let mut counts = BTreeMap::new();
    for text in texts {
        for word in cut(cutter, text)? {
            *counts.entry(word).or_default() += 1;
        }
    }
    Ok(counts)
}

/// Cuts a text into words.
fn cut(cutter: &tokenizers::Tokenizer, text: &str) -> Result<Vec<String>> {
    use tokenizers::{Normalizer as _, OffsetReferential, OffsetType, PreTokenizer as _};
    let failed =
        |error: tokenizers::Error| DataError::Text { name: "text".to_owned(), reason: error.to_string() };
    let mut normalized = tokenizers::NormalizedString::from(text);
    if let Some(normalizer) = cutter.get_normalizer() {
        normalizer.normalize(&mut normalized).map_err(failed)?;
    }
    let mut parts = tokenizers::PreTokenizedString::from(normalized);
    if let Some(pre_tokenizer) = cutter.get_pre_tokenizer() {
        pre_tokenizer.pre_tokenize(&mut parts).map_err(failed)?;
    }
    let mut words = Vec::new();
    for (word, _, _) in parts.get_splits(OffsetReferential::Normalized, OffsetType::None) {
        let mut rest = word;
        while let Some((at, _)) = rest.char_indices().nth(LONGEST) {
            let (first, others) = rest.split_at(at);
            words.push(first.to_owned());
            rest = others;
        }
        if !rest.is_empty() {
            words.push(rest.to_owned());
        }
    }
    Ok(words)
}
