//! The texts or tokens that a path names, as the tokens of the training and of the test split.
//!
//! | path | splits |
//! |---|---|
//! | a file of text | its end is for testing |
//! | a folder of texts, a `.jsonl` or `.parquet` file | files named `train…`, and `val…`, `valid…` or `test…`; else of every `100 / percent` documents the last is for testing |
//! | a folder of `.bin` files | the same names; a single file is cut as a text |

use std::path::{Path, PathBuf};
use std::str::FromStr;

use phalanx_data::{DataError, Links, Result, Split};

use crate::dataset::TokenPart;
use crate::documents::{Documents, DocumentsConfig, Passage, SplitRule, has_rows, split_of};
use crate::shards::{CHECKED, TokenShard, TokenStream};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer};

/// The choice of a tokenizer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum TokenizerChoice {
    /// The tokenizer in the folder of the data, or else characters.
    #[default]
    Default,
    /// The characters of the text.
    Characters,
    /// Bytes.
    Bytes,
    /// A file or folder, as for [`Tokenizer::open`].
    File(PathBuf),
}

impl FromStr for TokenizerChoice {
    type Err = std::convert::Infallible;

    /// `""`, `"characters"`, `"bytes"`, or a path.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match text {
            "" => Self::Default,
            "characters" => Self::Characters,
            "bytes" => Self::Bytes,
            path => Self::File(PathBuf::from(path)),
        })
    }
}

/// The settings of a [`Corpus`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorpusConfig {
    /// The tokenizer.
    pub tokenizer: TokenizerChoice,
    /// The percentage of the text or of the documents for testing, where no names say it; 1 to 99.
    pub test_percent: u64,
    /// The texts of files.
    pub documents: DocumentsConfig,
}

impl Default for CorpusConfig {
    fn default() -> Self {
        Self { tokenizer: TokenizerChoice::Default, test_percent: 10, documents: DocumentsConfig::default() }
    }
}

/// Tokens of two splits, with their tokenizer.
#[derive(Debug, Clone)]
pub struct Corpus {
    tokenizer: Option<Tokenizer>,
    train: Vec<TokenPart>,
    test: Vec<TokenPart>,
}

impl Corpus {
    /// Opens what a path names. Texts are encoded into memory; files of tokens stay on the disk.
    ///
    /// # Errors
    /// If nothing is there, a file is damaged, a character has no token, or a token is beyond the tokenizer's vocabulary.
    pub fn open(path: impl AsRef<Path>, config: &CorpusConfig) -> Result<Self> {
        let path = path.as_ref();
        if !(1..100).contains(&config.test_percent) {
            let reason = format!("{} is not in 1..100", config.test_percent);
            return Err(DataError::config("text.test_percent", reason));
        }
        let files = shard_files(path)?;
        match files.is_empty() {
            false => Self::of_shards(path, &files, config),
            true => Self::of_texts(path, config),
        }
    }

    /// The tokenizer; `None` if the folder of files of tokens has none.
    #[must_use]
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The tokens of a split.
    #[must_use]
    pub fn parts(&self, split: Split) -> &[TokenPart] {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }

    fn of_shards(path: &Path, files: &[PathBuf], config: &CorpusConfig) -> Result<Self> {
        let tokenizer = match &config.tokenizer {
            TokenizerChoice::File(file) => Some(Tokenizer::open(file)?),
            TokenizerChoice::Bytes => Some(Tokenizer::bytes()),
            TokenizerChoice::Characters => {
                let reason =
                    format!("{} has tokens, whose characters are not known; name a file", path.display());
                return Err(DataError::config("tokenizer", reason));
            }
            TokenizerChoice::Default => {
                let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
                let file = folder.join(TOKENIZER_FILE);
                if file.is_file() { Some(Tokenizer::open(file)?) } else { None }
            }
        };
        let (mut train, mut test, mut unnamed) = (Vec::new(), Vec::new(), Vec::new());
        for file in files {
            let shard = TokenShard::open(file)?;
            if let Some(tokenizer) = &tokenizer {
                shard.check_tokens(tokenizer.vocab(), CHECKED)?;
            }
            let part = TokenPart::whole(TokenStream::File(shard));
            match split_of(file) {
                Some(Split::Train) => train.push(part),
                Some(Split::Test) => test.push(part),
                None => unnamed.push(part),
            }
        }
        if train.is_empty() && test.is_empty() && unnamed.len() == 1 {
            let [first, last] = TokenPart::split(&unnamed[0].stream, config.test_percent);
            return Ok(Self { tokenizer, train: vec![first], test: vec![last] });
        }
        if train.is_empty() {
            let looked_for = "files of tokens named train….bin, and val….bin or test….bin".to_owned();
            return Err(DataError::Unrecognised { path: path.to_owned(), looked_for });
        }
        Ok(Self { tokenizer, train, test })
    }

    fn of_texts(path: &Path, config: &CorpusConfig) -> Result<Self> {
        let documents = Documents::open(&[path.to_owned()], config.documents.clone())?;
        let is_plain = !path.is_dir() && !has_rows(path);
        if is_plain && config.tokenizer == TokenizerChoice::Bytes {
            // A file that is no text has bytes, too.
            let bytes = Links::Follow.read(path).map_err(|error| DataError::io(path, error))?;
            let tokens = bytes.into_iter().map(u32::from).collect();
            return Ok(Self::cut(Tokenizer::bytes(), path, tokens, config));
        }
        let splits = Texts::read(&documents, is_plain, config)?;
        let tokenizer = match &config.tokenizer {
            TokenizerChoice::Bytes => Tokenizer::bytes(),
            TokenizerChoice::File(file) => Tokenizer::open(file)?,
            TokenizerChoice::Default | TokenizerChoice::Characters => {
                Tokenizer::characters_of(splits.all().map(|passage| passage.text.as_str()))?
            }
        };
        if is_plain {
            let (tokens, _) = encode(&tokenizer, &splits.train)?;
            return Ok(Self::cut(tokenizer, path, tokens, config));
        }
        let stream = |split: Split, passages: &[Passage]| -> Result<Vec<TokenPart>> {
            if passages.is_empty() {
                return Ok(Vec::new());
            }
            let (tokens, borders) = encode(&tokenizer, passages)?;
            let name = format!("{}/{split}", path.display());
            let stream = TokenStream::Memory { name, tokens: tokens.into(), documents: Some(borders.into()) };
            Ok(vec![TokenPart::whole(stream)])
        };
        let (train, test) = (stream(Split::Train, &splits.train)?, stream(Split::Test, &splits.test)?);
        Ok(Self { tokenizer: Some(tokenizer), train, test })
    }

    /// Cuts the tokens of one text into the splits.
    fn cut(tokenizer: Tokenizer, path: &Path, tokens: Vec<u32>, config: &CorpusConfig) -> Self {
        let stream = TokenStream::memory(path.display().to_string(), tokens);
        let [train, test] = TokenPart::split(&stream, config.test_percent);
        Self { tokenizer: Some(tokenizer), train: vec![train], test: vec![test] }
    }
}

/// The passages of the splits.
struct Texts {
    train: Vec<Passage>,
    test: Vec<Passage>,
}

impl Texts {
    fn read(documents: &Documents, is_plain: bool, config: &CorpusConfig) -> Result<Self> {
        let mut rule = SplitRule::new(documents, if is_plain { 0 } else { config.test_percent });
        let mut texts = Self { train: Vec::new(), test: Vec::new() };
        for file in documents.files() {
            documents.read(file, &mut |passage| {
                let split = match rule.assign(file, passage.ends) {
                    Split::Train => &mut texts.train,
                    Split::Test => &mut texts.test,
                };
                split.push(passage);
                Ok(())
            })?;
        }
        Ok(texts)
    }

    fn all(&self) -> impl Iterator<Item = &Passage> {
        self.train.iter().chain(&self.test)
    }
}

/// Encodes passages. Returns the tokens, with the end of each document if the tokenizer has one, and the tokens at which
/// documents begin.
fn encode(tokenizer: &Tokenizer, passages: &[Passage]) -> Result<(Vec<u32>, Vec<u64>)> {
    const AT_ONCE: usize = 1024;
    let (mut tokens, mut borders) = (Vec::new(), Vec::new());
    let mut begins = true;
    for group in passages.chunks(AT_ONCE) {
        let texts: Vec<String> = group.iter().map(|passage| passage.text.clone()).collect();
        for (encoded, passage) in tokenizer.encode_all(&texts)?.into_iter().zip(group) {
            if begins && !encoded.is_empty() {
                borders.push(tokens.len() as u64);
                begins = false;
            }
            tokens.extend(encoded);
            if passage.ends && !begins {
                tokens.extend(tokenizer.end_of_text());
                begins = true;
            }
        }
    }
    Ok((tokens, borders))
}

/// The files of tokens that a path names, sorted; none if it names texts.
fn shard_files(path: &Path) -> Result<Vec<PathBuf>> {
    let is_shard = |path: &Path| path.extension().is_some_and(|ending| ending == "bin");
    if !path.is_dir() {
        return Ok(if is_shard(path) { vec![path.to_owned()] } else { Vec::new() });
    }
    let io = |error| DataError::io(path, error);
    let entries = std::fs::read_dir(path).map_err(io)?.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
    let mut files: Vec<PathBuf> =
        entries.iter().map(std::fs::DirEntry::path).filter(|path| is_shard(path) && path.is_file()).collect();
    files.sort();
    Ok(files)
}
