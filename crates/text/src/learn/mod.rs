//! Learns tokenizers from texts: byte-level BPE, WordPiece and Unigram. The same texts in any order give the same bytes.

mod counts;
mod cutting;
mod format;
mod merges;
mod unigram;

use std::str::FromStr;

use phalanx_data::{DataError, Result};

use crate::tokenizer::Tokenizer;
pub use counts::WordCounts;

/// The token that ends a document in learned tokenizers.
pub const END_OF_TEXT: &str = "<|endoftext|>";

/// A way to learn pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PieceKind {
    /// Byte-level byte-pair encoding (Sennrich et al. 2016; Radford et al. 2019). Any text can be encoded.
    #[default]
    Bpe,
    /// WordPiece (Schuster and Nakajima 2012; Devlin et al. 2019): lower-case words without accents, and their
    /// continuations, which begin with `##`.
    WordPiece,
    /// Unigram language model (Kudo 2018) on words that begin with `▁`, with bytes for unknown characters.
    Unigram,
}

impl PieceKind {
    /// The name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bpe => "bpe",
            Self::WordPiece => "wordpiece",
            Self::Unigram => "unigram",
        }
    }

    /// Returns the tokens that are there before any is learned.
    fn fixed(self) -> Vec<String> {
        let special = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        match self {
            Self::Bpe => special(&[END_OF_TEXT]),
            // The order of BERT's vocabularies.
            Self::WordPiece => special(&["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
            Self::Unigram => special(&["<unk>", END_OF_TEXT])
                .into_iter()
                .chain((0..=255).map(|byte: u8| format!("<0x{byte:02X}>")))
                .collect(),
        }
    }
}

impl FromStr for PieceKind {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self> {
        let kinds = [Self::Bpe, Self::WordPiece, Self::Unigram];
        kinds.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            DataError::config("tokenizer", format!("{text:?}; expected bpe, wordpiece or unigram"))
        })
    }
}

/// Learns a tokenizer of `vocab` tokens from the words of texts. It has fewer if the texts have fewer pieces that occur
/// twice.
///
/// ```
/// use phalanx_text::{PieceKind, WordCounts, learn};
///
/// let mut counts = WordCounts::new(PieceKind::Bpe);
/// counts.add("the theory of the thing")?;
/// let tokenizer = learn(&counts, 260)?;
/// assert_eq!(tokenizer.piece(257).as_deref(), Some("th"));
/// assert_eq!(tokenizer.decode(&tokenizer.encode("the other")?)?, "the other");
/// # Ok::<(), phalanx_data::DataError>(())
/// ```
///
/// # Errors
/// If `vocab` is too small for the characters or bytes, or there is no word.
pub fn learn(counts: &WordCounts, vocab: usize) -> Result<Tokenizer> {
    let kind = counts.kind();
    if counts.is_empty() {
        return Err(DataError::config("tokenizer", "the texts have no words"));
    }
    let json = match kind {
        PieceKind::Bpe | PieceKind::WordPiece => {
            let alphabet = merges::Alphabet::of(counts);
            needed(kind, vocab, alphabet.len())?;
            let learned = merges::learn(counts, &alphabet, vocab - kind.fixed().len());
            match kind {
                PieceKind::WordPiece => format::word_piece(&kind.fixed(), &learned),
                _ => format::bpe(&kind.fixed(), &learned),
            }
        }
        PieceKind::Unigram => {
            needed(kind, vocab, unigram::ASCII.count())?;
            let pieces = unigram::learn(counts, vocab - kind.fixed().len());
            format::unigram(&kind.fixed(), &pieces)
        }
    };
    Tokenizer::from_json(json, kind.name())
}

/// Checks that there is room for the fixed tokens and the characters.
fn needed(kind: PieceKind, vocab: usize, characters: usize) -> Result<()> {
    let least = kind.fixed().len() + characters;
    if vocab >= least {
        return Ok(());
    }
    let name = kind.name();
    Err(DataError::config(
        "tokenizer",
        format!("{vocab} tokens; {name} needs at least {least} for these texts"),
    ))
}
