//! The tokenizers of translations: one for both languages, or the three files of a published Marian model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use phalanx_data::{DataError, Links, Result};

use super::sentence_piece::{self, SPACE};
use super::{PairTokens, TOKENIZER_FILE, Tokenizer};

/// The files of a published Marian model: how the source and the target are cut, and the tokens of both.
pub const MARIAN_FILES: [&str; 3] = ["source.spm", "target.spm", "vocab.json"];

/// The beginning and the end of the name of a target language, the first word of a text for a model of several: `>>fra<<`.
const LANGUAGE: [&str; 2] = [">>", "<<"];

/// A side of a translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The text that is translated.
    Source,
    /// The translation.
    Target,
}

/// The tokenizer of both sides of translations. Clones share its tables.
#[derive(Debug, Clone)]
pub enum TranslationTokenizer {
    /// One for both languages.
    Shared(Tokenizer),
    /// One for each, with tokens of one table: a published Marian model.
    Apart(MarianTokenizer),
}

impl TranslationTokenizer {
    /// Opens the files of a published Marian model: in a folder, or in that of one of them. `None` if it has none.
    ///
    /// # Errors
    /// If one of the three files is missing or damaged.
    pub fn of_marian(path: &Path) -> Result<Option<Self>> {
        let folder = match path.file_name().and_then(std::ffi::OsStr::to_str) {
            Some(name) if MARIAN_FILES.contains(&name) => path.parent().unwrap_or(Path::new(".")),
            _ => path,
        };
        match folder.join(MARIAN_FILES[0]).is_file() {
            true => MarianTokenizer::open(folder).map(|apart| Some(Self::Apart(apart))),
            false => Ok(None),
        }
    }

    /// Returns its file, folder or kind, for messages.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Shared(tokenizer) => tokenizer.name().to_owned(),
            Self::Apart(apart) => apart.folder.display().to_string(),
        }
    }

    /// Returns the tokens that stand for no text.
    ///
    /// # Errors
    /// If a shared tokenizer has none; see [`Tokenizer::for_pairs`].
    pub fn special(&self) -> Result<PairTokens> {
        match self {
            Self::Shared(tokenizer) => {
                let (whole, special) = tokenizer.for_pairs()?;
                match whole.vocab() == tokenizer.vocab() {
                    true => Ok(special),
                    false => {
                        Err(DataError::config("tokenizer", "it has no tokens for the end and the padding"))
                    }
                }
            }
            Self::Apart(apart) => Ok(apart.tables.special),
        }
    }

    /// Returns the number of token ids.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match self {
            Self::Shared(tokenizer) => tokenizer.vocab(),
            Self::Apart(apart) => apart.tables.pieces.len(),
        }
    }

    /// Encodes texts of a side, in their order, without special tokens.
    ///
    /// # Errors
    /// If a character has no token, and the tokenizer has none for such characters.
    pub fn encode_all(&self, side: Side, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        match self {
            Self::Shared(tokenizer) => tokenizer.encode_all(texts),
            Self::Apart(apart) => texts.iter().map(|text| apart.encode(side, text)).collect(),
        }
    }

    /// Decodes tokens, without special ones.
    ///
    /// # Errors
    /// If a number is not a token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        match self {
            Self::Shared(tokenizer) => tokenizer.decode(tokens),
            Self::Apart(apart) => apart.decode(tokens),
        }
    }

    /// Returns the names and contents of its files.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &[u8])> {
        match self {
            Self::Shared(tokenizer) => vec![(TOKENIZER_FILE, tokenizer.json().as_bytes())],
            Self::Apart(apart) => {
                let contents = apart.tables.files.iter().map(Vec::as_slice);
                MARIAN_FILES.into_iter().zip(contents).collect()
            }
        }
    }
}

/// The tokenizers of a published Marian model. Two models of SentencePiece cut texts into pieces, and one table numbers the pieces of
/// both languages (transformers' `MarianTokenizer`).
#[derive(Debug, Clone)]
pub struct MarianTokenizer {
    folder: PathBuf,
    tables: std::sync::Arc<Tables>,
}

#[derive(Debug)]
struct Tables {
    source: Cut,
    target: Cut,
    /// The pieces by token; empty where a token has none.
    pieces: Vec<String>,
    tokens: HashMap<String, u32>,
    unknown: u32,
    special: PairTokens,
    /// The contents of the files.
    files: [Vec<u8>; 3],
}

/// A model that cuts texts of a language.
#[derive(Debug)]
struct Cut {
    pieces: Box<tokenizers::Tokenizer>,
    /// The token of each of its pieces that stand for text, if the table has it.
    tokens: Vec<Option<u32>>,
    /// Its piece for text that it does not know.
    unknown: u32,
}

impl MarianTokenizer {
    fn open(folder: &Path) -> Result<Self> {
        let paths = MARIAN_FILES.map(|name| folder.join(name));
        let read = |path: &PathBuf| Links::Follow.read(path).map_err(|error| DataError::io(path, error));
        let files = [read(&paths[0])?, read(&paths[1])?, read(&paths[2])?];
        let unusable = |at: usize| {
            let path = paths[at].clone();
            move |reason: String| DataError::file(&path, reason)
        };
        let tokens: HashMap<String, u32> = serde_json::from_slice(&files[2])
            .map_err(|error| unusable(2)(format!("not an object of tokens: {error}")))?;
        let most = tokens.values().max().map_or(0, |id| *id as usize + 1);
        if most > 2 * tokens.len() + 1 {
            return Err(unusable(2)(format!("its largest token is {}, of {}", most - 1, tokens.len())));
        }
        let mut pieces = vec![String::new(); most];
        tokens.iter().for_each(|(piece, id)| pieces[*id as usize].clone_from(piece));
        let named = |name: &str| {
            tokens.get(name).copied().ok_or_else(|| unusable(2)(format!("it has no token `{name}`")))
        };
        let (padding, end, unknown) = (named("<pad>")?, named("</s>")?, named("<unk>")?);
        let source = Cut::of(&files[0], &tokens).map_err(unusable(0))?;
        let target = Cut::of(&files[1], &tokens).map_err(unusable(1))?;
        let special = PairTokens { padding, start: padding, end };
        let tables = Tables { source, target, pieces, tokens, unknown, special, files };
        Ok(Self { folder: folder.to_owned(), tables: std::sync::Arc::new(tables) })
    }

    fn encode(&self, side: Side, text: &str) -> Result<Vec<u32>> {
        let Tables { source, target, tokens, unknown, special, .. } = &*self.tables;
        let cut = if side == Side::Source { source } else { target };
        let mut encoded = Vec::new();
        let mut rest = text;
        if let (true, Some(end)) = (text.starts_with(LANGUAGE[0]), text.rfind(LANGUAGE[1])) {
            let (language, after) = text.split_at(end + LANGUAGE[1].len());
            encoded.push(tokens.get(language).copied().unwrap_or(*unknown));
            rest = after;
        }
        let encoding = cut.pieces.encode(rest, false).map_err(|error| DataError::Text {
            name: self.folder.display().to_string(),
            reason: error.to_string(),
        })?;
        let numbered = encoding.get_ids().iter().zip(encoding.get_tokens()).map(|(id, text)| {
            let known = match *id == cut.unknown {
                // A piece of the other language can be the text that is unknown here.
                true => tokens.get(text).copied().filter(|id| ![special.padding, special.end].contains(id)),
                false => cut.tokens.get(*id as usize).copied().flatten(),
            };
            known.unwrap_or(*unknown)
        });
        encoded.extend(numbered);
        Ok(encoded)
    }

    fn decode(&self, tokens: &[u32]) -> Result<String> {
        let Tables { pieces, special, unknown, .. } = &*self.tables;
        let mut text = String::new();
        for id in tokens {
            let Some(piece) = pieces.get(*id as usize) else {
                return Err(DataError::UnknownToken { id: *id, vocab: pieces.len() });
            };
            if ![special.padding, special.end, *unknown].contains(id) {
                text.push_str(piece);
            }
        }
        Ok(text.replace(SPACE, " ").trim().to_owned())
    }
}

impl Cut {
    /// Makes the model of a file, whose pieces are numbered by `tokens`.
    fn of(bytes: &[u8], tokens: &HashMap<String, u32>) -> std::result::Result<Self, String> {
        let json = sentence_piece::json_of(bytes)?;
        let pieces = super::parse(&json)?;
        let count = pieces.get_vocab_size(true) as u32;
        let unknown = sentence_piece::unknown_of(bytes)?.ok_or("it has no piece for unknown text")?;
        let special = pieces.get_added_tokens_decoder();
        let is_text = |id: &u32| special.get(id).is_none_or(|added| !added.special);
        let token = |id| tokens.get(&pieces.id_to_token(id)?).copied();
        let tokens = (0..count).map(|id| if is_text(&id) { token(id) } else { None }).collect();
        let mut pieces = Box::new(pieces);
        pieces.set_encode_special_tokens(true);
        Ok(Self { pieces, tokens, unknown })
    }
}
