//! Windows of a long sequence of tokens.

use std::path::PathBuf;

use phalanx_data::dataset::check_index;
use phalanx_data::{DataError, Dataset, Result};

use super::TokenPart;
use crate::shards::{CHECKED, TokenStream};

/// The borders of documents within a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DocumentBorders {
    /// Documents are one text.
    #[default]
    Joined,
    /// Documents do not see each other. They begin where the index of the tokens says it, and behind the token `end`.
    Apart {
        /// The token that ends a document; `None` if only an index has the borders.
        end: Option<u32>,
    },
}

/// The settings of [`TokenWindows`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowsConfig {
    /// The predictions of a window; at least 1.
    pub context: usize,
    /// The distance between the beginnings of two windows, from 1 to the context. If it is below the context, the first
    /// tokens of a window are only seen, and the last `stride` are predicted. So each token is predicted once.
    pub stride: usize,
    /// The borders of documents.
    pub documents: DocumentBorders,
}

/// A window: tokens, each with the following one as its target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenWindow {
    /// The tokens; one more than predictions.
    pub tokens: Vec<u32>,
    /// The first prediction that counts.
    pub scored_from: usize,
    /// The column at which the document of each token begins; empty if documents are joined.
    pub starts: Vec<u32>,
}

impl TokenWindow {
    /// Returns the weights of the predictions: 0 for those that are only seen, and for the first token of a document.
    #[must_use]
    pub fn weights(&self) -> Vec<f32> {
        let predictions = self.tokens.len().saturating_sub(1);
        let counts = |at: usize| {
            let crosses = self.starts.get(at + 1).is_some_and(|start| *start as usize == at + 1);
            at >= self.scored_from && !crosses
        };
        (0..predictions).map(|at| if counts(at) { 1.0 } else { 0.0 }).collect()
    }
}

/// Windows of tokens. Every token but the first of a part is predicted once an epoch.
///
/// A sample is a place in the tokens, so the order of an epoch and its resumption are arithmetic. The weight of a sample is
/// its number of predictions.
#[derive(Debug, Clone)]
pub struct TokenWindows {
    name: String,
    parts: Vec<TokenPart>,
    /// The number of windows of the parts before each part, and of all.
    before: Vec<usize>,
    config: WindowsConfig,
}

impl TokenWindows {
    /// Cuts parts into windows; `name` is for messages.
    ///
    /// # Errors
    /// If a setting is out of range, or no part has two tokens.
    pub fn new(name: impl Into<String>, parts: Vec<TokenPart>, config: WindowsConfig) -> Result<Self> {
        let name = name.into();
        let WindowsConfig { context, stride, .. } = config;
        if context == 0 || stride == 0 || stride > context {
            let reason = format!(
                "a context of {context} tokens with a stride of {stride}; expected 1 <= stride <= context"
            );
            return Err(DataError::config("text.windows", reason));
        }
        let mut before = vec![0];
        for part in &parts {
            let predictions = part.len().saturating_sub(1);
            // The first window predicts up to `context` tokens, each further one `stride`.
            let further = predictions.saturating_sub(context as u64).div_ceil(stride as u64);
            let windows = if predictions == 0 { 0 } else { 1 + further as usize };
            before.push(before.last().copied().unwrap_or(0) + windows);
        }
        if before.last() == Some(&0) {
            let tokens: u64 = parts.iter().map(TokenPart::len).sum();
            let reason = format!("{tokens} tokens have no two in a row, of which one is predicted");
            return Err(DataError::Text { name, reason });
        }
        Ok(Self { name, parts, before, config })
    }

    /// The parts.
    #[must_use]
    pub fn parts(&self) -> &[TokenPart] {
        &self.parts
    }

    /// The number of tokens of all parts.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.parts.iter().map(TokenPart::len).sum()
    }

    /// Checks that the tokens of files are below `vocab`: the first 2²⁹ of each.
    ///
    /// # Errors
    /// If one is not: the error names its place.
    pub fn check_tokens(&self, vocab: usize) -> Result<()> {
        for part in &self.parts {
            if let TokenStream::File(shard) = &part.stream {
                shard.check_tokens(vocab, CHECKED)?;
            }
        }
        Ok(())
    }

    /// Finds a window: its part, its first token there, and its number of tokens and of tokens that are only seen.
    fn place(&self, index: usize) -> Place<'_> {
        let part = self.before.partition_point(|before| *before <= index) - 1;
        let WindowsConfig { context, stride, .. } = self.config;
        let number = (index - self.before[part]) as u64;
        let part = &self.parts[part];
        let begin = part.range.start + number * stride as u64;
        let end = part.range.end.min(begin + context as u64 + 1);
        let scored_from = if number == 0 { 0 } else { context - stride };
        Place { part, begin, tokens: (end - begin) as usize, scored_from }
    }

    /// The column at which the document of each token begins.
    fn starts(&self, place: &Place<'_>, tokens: &[u32]) -> Vec<u32> {
        let DocumentBorders::Apart { end } = self.config.documents else { return Vec::new() };
        let documents = place.part.stream.documents().unwrap_or_default();
        let first = documents.partition_point(|document| *document <= place.begin);
        let mut borders = documents[first..].iter().map(|document| document - place.begin).peekable();
        let mut start = 0;
        let mut starts = Vec::with_capacity(tokens.len());
        for at in 0..tokens.len() {
            if at > 0 && end == Some(tokens[at - 1]) {
                start = at as u32;
            }
            if borders.next_if_eq(&(at as u64)).is_some() {
                start = at as u32;
            }
            starts.push(start);
        }
        starts
    }
}

/// The place of a window.
struct Place<'a> {
    part: &'a TokenPart,
    begin: u64,
    tokens: usize,
    scored_from: usize,
}

impl Dataset for TokenWindows {
    type Item = TokenWindow;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.before.last().copied().unwrap_or(0)
    }

    fn get(&self, index: usize, _epoch: u64) -> Result<TokenWindow> {
        check_index(&self.name, index, self.len())?;
        let place = self.place(index);
        let tokens = place.part.stream.read(place.begin, place.tokens)?;
        let starts = self.starts(&place, &tokens);
        Ok(TokenWindow { tokens, scored_from: place.scored_from, starts })
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.name, index, self.len())?;
        let place = self.place(index);
        Ok(PathBuf::from(place.part.stream.name()).join(place.begin.to_string()))
    }

    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(&self.name, index, self.len())?;
        if self.config.documents == DocumentBorders::Joined {
            let place = self.place(index);
            return Ok((place.tokens - 1 - place.scored_from) as f32);
        }
        Ok(self.get(index, 0)?.weights().iter().sum())
    }
}
