//! Pairs of texts with their tokenizer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use phalanx_data::{PairedSentences, Split};
use phalanx_text::{
    Languages, PairTokens, ParallelTexts, PieceKind, Side, TokenPair, Tokenizer, TokenizerChoice,
    TranslationTokenizer, WordCounts, learn,
};
use phalanx_trainer::engine::TrainError;

use super::newest::{Newest, changed};

/// Pairs of texts with their tokenizer.
pub(super) struct Pairs {
    /// The pairs; `None` for generated ones, or if only their tokenizer is there.
    pub(super) texts: Option<ParallelTexts>,
    /// The tokenizer, with the special tokens.
    pub(super) tokenizer: TranslationTokenizer,
    /// The special tokens.
    pub(super) special: PairTokens,
}

/// The choice of pairs and of their tokenizer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PairsKey {
    /// The path of the pairs; empty for generated ones.
    pub(super) path: PathBuf,
    /// The tokenizer.
    pub(super) tokenizer: TokenizerChoice,
    /// The languages.
    pub(super) languages: Languages,
    /// The number of pieces to learn where there is no tokenizer.
    pub(super) pieces: usize,
}

impl Pairs {
    /// Returns the number of tokens that a model may write: one less if padding is the last, which no text has.
    pub(super) fn written_vocab(&self) -> usize {
        let vocab = self.tokenizer.vocab();
        vocab - usize::from(self.special.padding as usize + 1 == vocab)
    }

    /// Opens pairs, or returns those that were opened last: ranks of a process share them.
    pub(super) fn shared(key: PairsKey) -> Result<Arc<Self>, TrainError> {
        static NEWEST: Newest<(PairsKey, Option<SystemTime>), Pairs> = Newest::new();
        let changed = changed(&key.path);
        NEWEST.get((key, changed), |(key, _)| Self::open(key))
    }

    fn open(key: &PairsKey) -> Result<Self, TrainError> {
        let is_generated = key.path.as_os_str().is_empty();
        let texts = match is_generated || !key.path.exists() && key.tokenizer != TokenizerChoice::Default {
            true => None,
            false => Some(ParallelTexts::open(&key.path, &key.languages)?),
        };
        if let TokenizerChoice::File(path) = &key.tokenizer
            && let Some(tokenizer) = TranslationTokenizer::of_marian(path)?
        {
            let special = tokenizer.special()?;
            return Ok(Self { texts, tokenizer, special });
        }
        let tokenizer = match (&key.tokenizer, &texts) {
            (TokenizerChoice::File(path), _) => Tokenizer::open(path)?,
            (TokenizerChoice::Bytes, _) => Tokenizer::bytes(),
            (_, None) => Tokenizer::words(&PairedSentences::words())?,
            (choice, Some(texts)) => tokenizer_of(choice, &key.path, texts, key.pieces)?,
        };
        let (tokenizer, special) = tokenizer.for_pairs()?;
        Ok(Self { texts, tokenizer: TranslationTokenizer::Shared(tokenizer), special })
    }

    /// Encodes the pairs of a split whose sides have at most `longest` tokens with their ends.
    pub(super) fn encoded(
        &self,
        texts: &ParallelTexts,
        split: Split,
        longest: usize,
    ) -> Result<Vec<TokenPair>, TrainError> {
        let pairs = texts.pairs(split);
        let encoded = |side, of: fn(&phalanx_text::TextPair) -> &String| -> Result<_, TrainError> {
            let texts: Vec<String> = pairs.iter().map(|pair| of(pair).clone()).collect();
            Ok(self.tokenizer.encode_all(side, &texts)?)
        };
        let sources = encoded(Side::Source, |pair| &pair.source)?;
        let targets = encoded(Side::Target, |pair| &pair.target)?;
        let all = sources.into_iter().zip(targets).map(|(source, target)| TokenPair { source, target });
        Ok(all.filter(|pair| pair.source.len().max(pair.target.len()) < longest).collect())
    }
}

/// Makes the tokenizer of texts: that in their folder, their characters, or learned pieces.
fn tokenizer_of(
    choice: &TokenizerChoice,
    path: &Path,
    texts: &ParallelTexts,
    pieces: usize,
) -> Result<Tokenizer, TrainError> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let file = folder.join(phalanx_text::TOKENIZER_FILE);
    if *choice == TokenizerChoice::Default && file.is_file() {
        return Ok(Tokenizer::open(file)?);
    }
    let sides = |split| texts.pairs(split).iter().flat_map(|pair| [&pair.source, &pair.target]);
    if *choice == TokenizerChoice::Characters {
        let all = sides(Split::Train).chain(sides(Split::Test)).map(String::as_str);
        return Ok(Tokenizer::characters_of(all)?);
    }
    let mut counts = WordCounts::new(PieceKind::Bpe);
    for text in sides(Split::Train) {
        counts.add(text)?;
    }
    Ok(learn(&counts, pieces)?)
}
