//! CLIP's byte-pair tokenizer, equal to openai/CLIP's `simple_tokenizer.py` on clean text.
//!
//! A text is cleaned and lowered, split into words, numbers and punctuation, and each piece's bytes are merged
//! pair by pair in the order that the merges were learnt. The merges are built in, so nothing is downloaded.

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

/// How many of the file's merges CLIP uses.
const CLIP_MERGES: usize = 48_894;

/// Specials, contractions, words, single digits, runs of anything else.
static PIECES: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
        .expect("a constant pattern that the tests compile")
});

/// Text to token ids and back. Clones share the tables.
#[derive(Debug, Clone)]
pub struct ClipTokenizer {
    merges: Arc<Merges>,
}

impl ClipTokenizer {
    /// CLIP's tokenizer of 49,408 tokens.
    ///
    /// # Errors
    /// Never in practice: the merges are built in and tested.
    pub fn new() -> Result<Self> {
        Self::with_vocab(CLIP_MERGES + bpe::BYTES + 2)
    }

    /// CLIP's tokenizer with only the most frequent merges, so that it has `vocab` tokens: for small models
    /// trained from scratch, whose token table would otherwise be most of the model. Any text can still be
    /// written; rarer words take more tokens.
    ///
    /// # Errors
    /// If `vocab` is below 514 (the bytes and the two specials) or above 49,408.
    pub fn with_vocab(vocab: usize) -> Result<Self> {
        Self::read(EMBEDDED, Path::new("the built-in merges"), vocab)
    }

    /// CLIP's tokenizer with merges from a file in the format of `bpe_simple_vocab_16e6.txt.gz`.
    ///
    /// # Errors
    /// If the file cannot be read or holds fewer merges.
    pub fn from_merges_file(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|source| DataError::io(path, source))?;
        Self::read(&bytes, path, CLIP_MERGES + bpe::BYTES + 2)
    }

    /// A tokenizer of `vocab` tokens with merges from a text file, as Hugging Face's `merges.txt`: a line that is left
    /// out, then a pair a line, of which as many are used as make `vocab` tokens with the bytes and the two specials.
    ///
    /// # Errors
    /// If the file cannot be read or holds fewer merges, or `vocab` is below 514.
    pub fn from_merges_text(path: &Path, vocab: usize) -> Result<Self> {
        let Some(count) = vocab.checked_sub(bpe::BYTES + 2) else {
            let reason = format!("a vocabulary of {vocab} tokens; expected at least 514");
            return Err(DataError::config("tokenizer", reason));
        };
        let text = std::fs::read_to_string(path).map_err(|source| DataError::io(path, source))?;
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

    /// How many different tokens there are.
    pub fn vocab(&self) -> usize {
        self.merges.vocab()
    }

    /// The token that starts every text.
    pub fn start(&self) -> u32 {
        self.merges.vocab() as u32 - 2
    }

    /// The token that ends every text; the largest id.
    pub fn end(&self) -> u32 {
        self.merges.vocab() as u32 - 1
    }

    /// The ids of a text, without start and end.
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

    /// Start, ids, end, and zeros up to `context`.
    ///
    /// # Errors
    /// If the text takes more tokens than fit.
    pub fn encode(&self, text: &str, context: usize) -> Result<Vec<u32>> {
        let ids = self.tokenize(text);
        if ids.len() + 2 > context {
            let text = text.chars().take(60).collect();
            let (tokens, total) = (ids.len(), ids.len() + 2);
            return Err(DataError::TextTooLong { tokens, total, context, text });
        }
        Ok(self.frame(&ids, context))
    }

    /// Token ids of a text between start and end of text, padded with zeros to `context`; what does not fit is left out.
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

    /// The text of ids up to the end token, with a space after every word; the start and unknown ids are left out.
    pub fn decode(&self, ids: &[u32]) -> String {
        let end = ids.iter().position(|id| *id == self.end()).unwrap_or(ids.len());
        self.merges.decode(&ids[..end]).trim_end().to_owned()
    }
}
