//! CLIP's byte-pair tokenizer, equal to openai/CLIP's `simple_tokenizer.py` on clean text.
//!
//! A text is cleaned, lowered and split into words, digits and punctuation. The bytes of each piece are merged pair by
//! pair in the order in which the merges were learnt. The merges are built in, so nothing is downloaded.

mod bpe;
mod clean;

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use regex::Regex;

use crate::error::{DataError, Result};
use bpe::Merges;

/// Merges of openai/CLIP, MIT licence; see `assets/LICENSE-CLIP`.
const EMBEDDED: &[u8] = include_bytes!("../../assets/bpe_simple_vocab_16e6.txt.gz");

/// The number of merges of the file that CLIP uses.
const CLIP_MERGES: usize = 48_894;

/// Special tokens, contractions, words, single digits, runs of other characters.
static PIECES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
        .expect("a constant pattern that the tests compile")
});

/// A tokenizer: text to token ids and back. Clones share the tables.
#[derive(Debug, Clone)]
pub struct ClipTokenizer {
    merges: Arc<Merges>,
}

impl ClipTokenizer {
    /// Returns CLIP's tokenizer of 49,408 tokens.
    ///
    /// # Errors
    /// Never in practice: the merges are built in and tested.
    pub fn new() -> Result<Self> {
        Self::with_vocab(CLIP_MERGES + bpe::BYTES + 2)
    }

    /// Returns CLIP's tokenizer with only the most frequent merges and `vocab` tokens. It is for small models trained
    /// from scratch, whose embedding table would otherwise dominate. Any text can still be encoded; rare words take
    /// more tokens.
    ///
    /// # Errors
    /// If `vocab` is below 514 (the bytes and the two specials) or above 49,408.
    pub fn with_vocab(vocab: usize) -> Result<Self> {
        Self::read(EMBEDDED, Path::new("the built-in merges"), vocab)
    }

    /// Returns CLIP's tokenizer with merges from a file in the format of `bpe_simple_vocab_16e6.txt.gz`.
    ///
    /// # Errors
    /// If the file cannot be read or has too few merges.
    pub fn from_merges_file(path: &Path) -> Result<Self> {
        let bytes = crate::Links::Follow.read(path).map_err(|source| DataError::io(path, source))?;
        Self::read(&bytes, path, CLIP_MERGES + bpe::BYTES + 2)
    }

    /// Returns a tokenizer of `vocab` tokens with merges from a text file, such as Hugging Face's `merges.txt`: a
    /// header line, then a pair a line. The bytes, the two special tokens and the first merges make up the vocabulary.
    ///
    /// # Errors
    /// If the file cannot be read or has too few merges, or `vocab` is below 514.
    pub fn from_merges_text(path: &Path, vocab: usize) -> Result<Self> {
        let Some(count) = vocab.checked_sub(bpe::BYTES + 2) else {
            let reason = format!("a vocabulary of {vocab} tokens; expected at least 514");
            return Err(DataError::config("tokenizer", reason));
        };
        let text = crate::Links::Follow.read_text(path).map_err(|source| DataError::io(path, source))?;
        let merges = Merges::parse(&text, count)
            .map_err(|problem| DataError::Vocabulary(format!("{}: {problem}", path.display())))?;
        Ok(Self { merges: Arc::new(merges) })
    }

    fn read(compressed: &[u8], path: &Path, vocab: usize) -> Result<Self> {
        let Some(count) = vocab.checked_sub(bpe::BYTES + 2).filter(|count| *count <= CLIP_MERGES) else {
            let reason = format!("a vocabulary of {vocab} tokens; expected 514 to 49408");
            return Err(DataError::config("tokenizer", reason));
        };
        let mut text = String::new();
        flate2::read::GzDecoder::new(compressed)
            .read_to_string(&mut text)
            .map_err(|source| DataError::io(path, source))?;
        let merges = Merges::parse(&text, count)
            .map_err(|problem| DataError::Vocabulary(format!("{}: {problem}", path.display())))?;
        Ok(Self { merges: Arc::new(merges) })
    }

    /// Returns the size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.merges.vocab()
    }

    /// Returns the start-of-text token.
    pub fn start(&self) -> u32 {
        self.merges.vocab() as u32 - 2
    }

    /// Returns the end-of-text token, the largest id.
    pub fn end(&self) -> u32 {
        self.merges.vocab() as u32 - 1
    }

    /// Tokenizes a text, without start and end tokens.
    pub fn tokenize(&self, text: &str) -> Vec<u32> {
        let text = clean::clean(text);
        let mut ids = Vec::new();
        for piece in PIECES.find_iter(&text) {
            match piece.as_str() {
                "<|startoftext|>" => ids.push(self.start()),
                "<|endoftext|>" => ids.push(self.end()),
                word => self.merges.encode(word, &mut ids),
            }
        }
        ids
    }

    /// Encodes a text as start, ids, end, and zeros up to `context`.
    ///
    /// # Errors
    /// If the text has too many tokens.
    pub fn encode(&self, text: &str, context: usize) -> Result<Vec<u32>> {
        let ids = self.tokenize(text);
        if ids.len() + 2 > context {
            let text = text.chars().take(60).collect();
            let (tokens, total) = (ids.len(), ids.len() + 2);
            return Err(DataError::TextTooLong { tokens, total, context, text });
        }
        Ok(self.frame(&ids, context))
    }

    /// Encodes a text as start, ids, end, and zeros up to `context`; excess tokens are cut off.
    pub fn encode_truncated(&self, text: &str, context: usize) -> Vec<u32> {
        let mut ids = self.tokenize(text);
        ids.truncate(context.saturating_sub(2));
        self.frame(&ids, context)
    }

    fn frame(&self, ids: &[u32], context: usize) -> Vec<u32> {
        let mut framed = Vec::with_capacity(context);
        framed.push(self.start());
        framed.extend_from_slice(ids);
        framed.push(self.end());
        framed.resize(context, 0);
        framed
    }

    /// Decodes ids up to the end token, with a space after every word. The start token and unknown ids are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let end = ids.iter().position(|id| *id == self.end()).unwrap_or(ids.len());
        self.merges.decode(&ids[..end]).trim_end().to_owned()
    }
}
