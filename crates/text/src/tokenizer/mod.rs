//! Tokenizers: from text to token ids and back.

mod alphabet;
mod description;
mod encoder_tokens;
mod folder;
mod pair_tokens;
mod protobuf;
mod sentence_piece;
mod special;
mod stream;
mod translation;

use std::path::Path;
use std::sync::Arc;

use phalanx_data::{DataError, Links, Result};

use alphabet::Alphabet;
pub(crate) use alphabet::byte_letter;
pub(crate) use description::{Description, added_token, byte_pairs};
pub use encoder_tokens::EncoderTokens;
pub use pair_tokens::PairTokens;
pub(crate) use sentence_piece::NEVER;
use special::KeptApart;
pub use stream::TextStream;
pub use translation::{MARIAN_FILES, MarianTokenizer, Side, TranslationTokenizer};

/// The name of the file of a tokenizer, in Hugging Face's format.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The largest number of ids without a token, beyond four for each token that there is.
const MOST_GAPS: usize = 1 << 16;

/// A tokenizer. Clones share its tables.
///
/// All kinds have one file format, the `tokenizer.json` of Hugging Face's tokenizers, which [`Tokenizer::json`] returns.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    tables: Arc<Tables>,
}

#[derive(Debug)]
struct Tables {
    /// The place that it comes from, for messages.
    name: String,
    kind: Kind,
    json: String,
    vocab: usize,
    end_of_text: Option<u32>,
    /// Special tokens that a text could be cut into.
    kept_apart: Option<KeptApart>,
}

/// The way that a text is cut.
#[derive(Debug)]
enum Kind {
    /// Each byte or each character is a token.
    Alphabet(Alphabet),
    /// Pieces that were learned.
    Pieces(Box<tokenizers::Tokenizer>),
}

impl Tokenizer {
    /// Returns the tokenizer whose tokens are the 256 bytes.
    ///
    /// ```
    /// use phalanx_text::Tokenizer;
    ///
    /// let bytes = Tokenizer::bytes();
    /// assert_eq!(bytes.encode("hé")?, [104, 195, 169]);
    /// assert_eq!(bytes.decode(&[104, 195, 169])?, "hé");
    /// # Ok::<(), phalanx_data::DataError>(())
    /// ```
    #[must_use]
    pub fn bytes() -> Self {
        Self::of_alphabet(Alphabet::Bytes, "bytes")
    }

    /// Returns the tokenizer whose tokens are the characters of a text, in ascending order.
    ///
    /// # Errors
    /// If the text has no character.
    pub fn characters(text: &str) -> Result<Self> {
        Self::characters_of([text])
    }

    /// Returns the tokenizer whose tokens are the characters of texts, in ascending order.
    ///
    /// # Errors
    /// If the texts have no character.
    pub fn characters_of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let alphabet = Alphabet::of_texts(texts);
        if alphabet.vocab() == 0 {
            return Err(DataError::config("tokenizer", "a text without a character has no tokens"));
        }
        Ok(Self::of_alphabet(alphabet, "characters"))
    }

    /// Returns the tokenizer whose tokens are words with spaces between them.
    ///
    /// # Errors
    /// If there is no word.
    pub fn words(words: &[&str]) -> Result<Self> {
        let vocab: serde_json::Map<String, serde_json::Value> =
            words.iter().zip(0_u32..).map(|(word, id)| ((*word).to_owned(), id.into())).collect();
        let description = Description {
            pre_tokenizer: serde_json::json!({"type": "WhitespaceSplit"}),
            model: serde_json::json!({"type": "WordLevel", "vocab": vocab, "unk_token": ""}),
            ..Description::default()
        };
        Self::from_json(description.text(), "words")
    }

    fn of_alphabet(alphabet: Alphabet, name: &str) -> Self {
        let (json, vocab) = (alphabet.json(), alphabet.vocab());
        let kind = Kind::Alphabet(alphabet);
        Self {
            tables: Arc::new(Tables {
                name: name.to_owned(),
                kind,
                json,
                vocab,
                end_of_text: None,
                kept_apart: None,
            }),
        }
    }

    /// Reads a tokenizer: a `tokenizer.json`, the `.model` of SentencePiece, or a folder that has one of them or GPT-2's
    /// `vocab.json` and `merges.txt`.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if path.is_dir() {
            return folder::open(path);
        }
        if path.extension().is_some_and(|ending| ending == "model") {
            let bytes = Links::Follow.read(path).map_err(|error| DataError::io(path, error))?;
            let json = sentence_piece::json_of(&bytes).map_err(|reason| DataError::file(path, reason))?;
            return Self::from_json(json, &path.display().to_string());
        }
        let json = Links::Follow.read_text(path).map_err(|error| DataError::io(path, error))?;
        Self::from_json(json, &path.display().to_string())
    }

    /// Makes a tokenizer of the contents of a `tokenizer.json`; `name` is for messages.
    ///
    /// # Errors
    /// If they describe no tokenizer.
    pub fn from_json(json: String, name: &str) -> Result<Self> {
        let unusable = |reason: String| DataError::file(Path::new(name), reason);
        let parsed: serde_json::Value = serde_json::from_str(&json)
            .map_err(|error| unusable(format!("not the JSON of a tokenizer: {error}")))?;
        if let Some(alphabet) = Alphabet::of_json(&parsed) {
            let vocab = alphabet.vocab();
            let kind = Kind::Alphabet(alphabet);
            let (name, end_of_text, kept_apart) = (name.to_owned(), None, None);
            let tables = Tables { name, kind, json, vocab, end_of_text, kept_apart };
            return Ok(Self { tables: Arc::new(tables) });
        }
        let kept_apart = KeptApart::of(&parsed);
        let apart = kept_apart.as_ref().map(|kept| kept.description(&parsed));
        let mut pieces = parse(apart.as_ref().unwrap_or(&json))
            .map_err(|error| unusable(format!("not a tokenizer: {error}")))?;
        // The text of a special token in a document is text.
        pieces.set_encode_special_tokens(true);
        let problem = pieces.with_truncation(None).err();
        if let Some(error) = problem {
            return Err(unusable(error.to_string()));
        }
        pieces.with_padding(None);
        // Ids may have gaps, so the number of tokens does not bound them.
        let vocab = pieces.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let there = pieces.get_vocab_size(true);
        if vocab == 0 {
            return Err(unusable("it has no tokens".to_owned()));
        }
        if vocab > 4 * there + MOST_GAPS {
            return Err(unusable(format!("its largest id is {}, for {there} tokens", vocab - 1)));
        }
        let end_of_text = special::end_of_text(&pieces);
        let kind = Kind::Pieces(Box::new(pieces));
        let name = name.to_owned();
        Ok(Self { tables: Arc::new(Tables { name, kind, json, vocab, end_of_text, kept_apart }) })
    }

    /// Returns the contents of its `tokenizer.json`. Those of a file are as they were read.
    #[must_use]
    pub fn json(&self) -> &str {
        &self.tables.json
    }

    /// Returns its file or its kind, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.tables.name
    }

    /// Returns the number of token ids: one more than the largest.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.tables.vocab
    }

    /// Returns the token that ends a document, such as `<|endoftext|>`, if there is one.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        self.tables.end_of_text
    }

    /// Returns the text of a token as its file has it; for displays.
    #[must_use]
    pub fn piece(&self, token: u32) -> Option<String> {
        match &self.tables.kind {
            Kind::Alphabet(alphabet) => alphabet.piece(token),
            Kind::Pieces(pieces) => pieces.id_to_token(token),
        }
    }

    /// Returns the number of bytes of text that each token stands for; 0 for special tokens. Together with a loss it gives
    /// bits per byte, which compare tokenizers.
    #[must_use]
    pub fn byte_lengths(&self) -> Vec<u32> {
        let tokens = 0..self.vocab() as u32;
        match &self.tables.kind {
            Kind::Alphabet(alphabet) => tokens.map(|token| alphabet.byte_length(token)).collect(),
            Kind::Pieces(pieces) => special::byte_lengths(pieces, self.json(), self.vocab()),
        }
    }

    /// Encodes a text. No special token is added, and the text of one is encoded as other text.
    ///
    /// # Errors
    /// If a character has no token.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.tables.kind {
            Kind::Alphabet(alphabet) => alphabet.encode(text).map_err(|reason| self.failed(reason)),
            Kind::Pieces(pieces) => {
                let encoding = pieces.encode_fast(text, false).map_err(|error| self.unknown(&error))?;
                Ok(self.ids(&encoding))
            }
        }
    }

    /// Returns the tokens of a text, with text in place of special ones.
    fn ids(&self, encoding: &tokenizers::Encoding) -> Vec<u32> {
        let ids = encoding.get_ids();
        match &self.tables.kept_apart {
            Some(kept) => ids.iter().map(|id| kept.text(*id)).collect(),
            None => ids.to_vec(),
        }
    }

    /// Encodes texts on all cores, in their order.
    ///
    /// # Errors
    /// If a character has no token.
    pub fn encode_all(&self, texts: &[String]) -> Result<Vec<Vec<u32>>> {
        match &self.tables.kind {
            Kind::Alphabet(_) => texts.iter().map(|text| self.encode(text)).collect(),
            Kind::Pieces(pieces) => {
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                let encodings =
                    pieces.encode_batch_fast(texts, false).map_err(|error| self.unknown(&error))?;
                Ok(encodings.iter().map(|encoding| self.ids(encoding)).collect())
            }
        }
    }

    /// Decodes tokens, without special ones. Bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// If a number is not a token.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let vocab = self.vocab();
        if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(DataError::UnknownToken { id, vocab });
        }
        match &self.tables.kind {
            Kind::Alphabet(alphabet) => Ok(alphabet.decode(tokens)),
            Kind::Pieces(pieces) => {
                pieces.decode(tokens, true).map_err(|error| self.failed(error.to_string()))
            }
        }
    }

    /// Starts the decoding of a text token by token.
    #[must_use]
    pub fn stream(&self) -> TextStream {
        TextStream::new(self.clone())
    }

    /// Makes the error of a text that cannot be encoded.
    fn unknown(&self, error: &tokenizers::Error) -> DataError {
        let text = error.to_string();
        self.failed(match text.contains("[UNK]") {
            true => format!("a word of the text is not among the {} of the vocabulary", self.vocab()),
            false => text,
        })
    }

    fn failed(&self, reason: String) -> DataError {
        DataError::Text { name: self.tables.name.clone(), reason }
    }
}

/// Parses a description. The library panics at some damaged ones.
fn parse(json: &str) -> std::result::Result<tokenizers::Tokenizer, String> {
    let parsed = std::panic::catch_unwind(|| tokenizers::Tokenizer::from_bytes(json.as_bytes()));
    match parsed {
        Ok(Ok(tokenizer)) => Ok(tokenizer),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("its tables are damaged".to_owned()),
    }
}
