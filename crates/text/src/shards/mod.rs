//! Files of tokens: those of nanoGPT, llm.c and Megatron-LM.
//!
//! | format | files | header | tokens |
//! |---|---|---|---|
//! | [`ShardFormat::NanoGpt`] | `.bin` | none | u16 |
//! | [`ShardFormat::LlmC`] | `.bin` | 256 i32: 20240520, 1, count; or 20240801, 7, count | u16; or u32 |
//! | [`ShardFormat::Megatron`] | `.bin` and `.idx` | in `.idx`: lengths and offsets of documents | u16 or i32 |
//!
//! All numbers are little-endian. Files are read by position, not mapped: a file that another program cuts short is then an
//! error, not a signal.

mod llm_c;
mod megatron;
mod stream;
mod writer;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use phalanx_data::{DataError, Links, Result};

pub use stream::TokenStream;
pub use writer::ShardWriter;

/// The most tokens of a file that are checked before it is used; each sample's are checked by the model again.
pub(crate) const CHECKED: u64 = 1 << 29;

/// A format of token files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShardFormat {
    /// Tokens alone, u16.
    NanoGpt,
    /// A header with the number of tokens, then tokens. A file that was cut short is noticed.
    #[default]
    LlmC,
    /// Tokens, and an index of documents in a file of its own.
    Megatron,
}

impl ShardFormat {
    const ALL: [Self; 3] = [Self::NanoGpt, Self::LlmC, Self::Megatron];

    /// The name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NanoGpt => "nanogpt",
            Self::LlmC => "llm.c",
            Self::Megatron => "megatron",
        }
    }
}

impl FromStr for ShardFormat {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.name() == text).ok_or_else(|| {
            DataError::config("format", format!("{text:?}; expected nanogpt, llm.c or megatron"))
        })
    }
}

/// The bytes of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Width {
    Two,
    Four,
}

impl Width {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// The narrowest width of a vocabulary.
    pub(crate) fn of_vocab(vocab: usize) -> Self {
        if vocab <= 1 << 16 { Self::Two } else { Self::Four }
    }
}

/// A file of tokens, open for reading by position.
#[derive(Debug, Clone)]
pub struct TokenShard {
    path: PathBuf,
    file: Arc<File>,
    format: ShardFormat,
    width: Width,
    /// The byte of the first token.
    begin: u64,
    len: u64,
    /// The tokens at which documents begin, if the format says it.
    documents: Option<Arc<[u64]>>,
}

impl TokenShard {
    /// Opens a file and finds its format: Megatron's if there is an `.idx` of the same name, llm.c's by the number it begins
    /// with, and else nanoGPT's.
    ///
    /// # Errors
    /// If the file cannot be read, was cut short, or contradicts its header or index.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (bin, index) = (path.with_extension("bin"), path.with_extension("idx"));
        if index.is_file() {
            return megatron::open(&bin, &index);
        }
        let (file, bytes) = opened(path)?;
        if let Some(header) = llm_c::header(path, &file, bytes)? {
            return Ok(header.shard(path, file));
        }
        if bytes % 2 != 0 || bytes == 0 {
            let reason = format!(
                "{bytes} bytes are no tokens of two bytes; the file is cut short or of another format"
            );
            return Err(DataError::file(path, reason));
        }
        Ok(Self {
            path: path.to_owned(),
            file: Arc::new(file),
            format: ShardFormat::NanoGpt,
            width: Width::Two,
            begin: 0,
            len: bytes / 2,
            documents: None,
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format.
    #[must_use]
    pub fn format(&self) -> ShardFormat {
        self.format
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true without tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The tokens at which documents begin, in ascending order, if the format says it.
    #[must_use]
    pub fn documents(&self) -> Option<&[u64]> {
        self.documents.as_deref()
    }

    /// Reads `count` tokens from token `from` on.
    ///
    /// # Errors
    /// If they are not in the file.
    pub fn read(&self, from: u64, count: usize) -> Result<Vec<u32>> {
        let end = from.checked_add(count as u64).filter(|end| *end <= self.len);
        if end.is_none() {
            let reason = format!("tokens {from} to {} of {}", from.saturating_add(count as u64), self.len);
            return Err(DataError::file(&self.path, reason));
        }
        let width = self.width.bytes();
        let mut bytes = vec![0; count * width as usize];
        read_at(&self.file, &mut bytes, self.begin + from * width)
            .map_err(|error| DataError::io(&self.path, error))?;
        Ok(match self.width {
            Width::Two => {
                bytes.chunks_exact(2).map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]]))).collect()
            }
            Width::Four => bytes
                .chunks_exact(4)
                .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
        })
    }

    /// Checks that the first `most` tokens are below `vocab`.
    ///
    /// # Errors
    /// If one is not: the error names its place.
    pub fn check_tokens(&self, vocab: usize, most: u64) -> Result<()> {
        const AT_ONCE: u64 = 1 << 20;
        let end = self.len.min(most);
        for from in (0..end).step_by(AT_ONCE as usize) {
            let tokens = self.read(from, AT_ONCE.min(end - from) as usize)?;
            if let Some(at) = tokens.iter().position(|&token| token as usize >= vocab) {
                let (token, at) = (tokens[at], from + at as u64);
                let reason = format!(
                    "token {at} is {token}, beyond the vocabulary of {vocab}; was it encoded by another tokenizer?"
                );
                return Err(DataError::file(&self.path, reason));
            }
        }
        Ok(())
    }
}

/// Opens a file. Returns it with its length in bytes.
fn opened(path: &Path) -> Result<(File, u64)> {
    let io = |error| DataError::io(path, error);
    let file = Links::Follow.open(path).map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    Ok((file, bytes))
}

/// Reads bytes at a position.
#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

/// Reads bytes at a position. The position of the file is shared, so reads wait for each other.
#[cfg(not(unix))]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> std::io::Result<()> {
    use std::io::{Read as _, Seek as _, SeekFrom};
    static ONE_READER: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = ONE_READER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut file = file;
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(bytes)
}
