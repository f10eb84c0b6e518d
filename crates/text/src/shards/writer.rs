//! Writes files of tokens.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use phalanx_data::{DataError, Result};

use super::{ShardFormat, Width, llm_c, megatron};

/// A file of tokens that is being written. It has its name only when it is complete.
#[derive(Debug)]
pub struct ShardWriter {
    path: PathBuf,
    partial: PathBuf,
    file: BufWriter<File>,
    format: ShardFormat,
    width: Width,
    len: u64,
    /// The lengths of the documents that ended.
    lengths: Vec<u64>,
    /// The tokens of the current document.
    current: u64,
}

impl ShardWriter {
    /// Creates a file for tokens below `vocab`. An existing one is replaced at the end.
    ///
    /// # Errors
    /// If the format has no room for the vocabulary, or the file cannot be created.
    pub fn create(path: &Path, format: ShardFormat, vocab: usize) -> Result<Self> {
        let width = Width::of_vocab(vocab);
        if format == ShardFormat::NanoGpt && width == Width::Four {
            let reason = format!(
                "nanogpt has tokens of two bytes, and the vocabulary has {vocab}; use llm.c or megatron"
            );
            return Err(DataError::config("format", reason));
        }
        let partial = path.with_extension("bin.partial");
        let io = |error| DataError::io(&partial, error);
        let mut file = BufWriter::new(File::create(&partial).map_err(io)?);
        if format == ShardFormat::LlmC {
            file.write_all(&[0; llm_c::HEADER as usize]).map_err(io)?;
        }
        Ok(Self {
            path: path.to_owned(),
            partial,
            file,
            format,
            width,
            len: 0,
            lengths: Vec::new(),
            current: 0,
        })
    }

    /// The number of tokens so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true without tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds tokens of the current document.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        let width = self.width.bytes() as usize;
        let mut bytes = Vec::with_capacity(tokens.len() * width);
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes()[..width]);
        }
        self.file.write_all(&bytes).map_err(|error| DataError::io(&self.partial, error))?;
        self.len += tokens.len() as u64;
        self.current += tokens.len() as u64;
        Ok(())
    }

    /// The number of tokens of the current document.
    #[must_use]
    pub fn document_len(&self) -> u64 {
        self.current
    }

    /// Removes what was written.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn discard(self) -> Result<()> {
        std::fs::remove_file(&self.partial).map_err(|error| DataError::io(&self.partial, error))
    }

    /// Ends the current document; one without tokens is left out.
    pub fn end_document(&mut self) {
        if self.current > 0 {
            self.lengths.push(self.current);
            self.current = 0;
        }
    }

    /// Completes the files and gives them their names.
    ///
    /// # Errors
    /// If they cannot be written, or the format has no room for the number of tokens.
    pub fn finish(mut self) -> Result<()> {
        self.end_document();
        let io = |error| DataError::io(&self.partial, error);
        if self.lengths.iter().any(|length| i32::try_from(*length).is_err()) {
            return Err(DataError::file(&self.path, "a document of more than 2,147,483,647 tokens"));
        }
        if self.format == ShardFormat::LlmC {
            let count = i32::try_from(self.len).map_err(|_| {
                DataError::file(
                    &self.path,
                    format!("{} tokens do not fit into a file of llm.c; write several", self.len),
                )
            })?;
            let [magic, version] = llm_c::magic(self.width);
            self.file.seek(SeekFrom::Start(0)).map_err(io)?;
            for number in [magic, version, count] {
                self.file.write_all(&number.to_le_bytes()).map_err(io)?;
            }
        }
        let file = self.file.into_inner().map_err(|error| io(error.into_error()))?;
        file.sync_all().map_err(io)?;
        let index = self.path.with_extension("idx");
        if self.format == ShardFormat::Megatron {
            let bytes = index_of(&self.lengths, self.width);
            std::fs::write(&index, bytes).map_err(|error| DataError::io(&index, error))?;
        }
        std::fs::rename(&self.partial, &self.path).map_err(|error| DataError::io(&self.path, error))
    }
}

/// Makes Megatron-LM's index of documents that are one sequence each.
fn index_of(lengths: &[u64], width: Width) -> Vec<u8> {
    let mut bytes = megatron::MAGIC.to_vec();
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(megatron::type_code(width));
    bytes.extend((lengths.len() as u64).to_le_bytes());
    bytes.extend((lengths.len() as u64 + 1).to_le_bytes());
    lengths.iter().for_each(|length| bytes.extend((*length as i32).to_le_bytes()));
    let mut offset = 0_u64;
    for length in lengths {
        bytes.extend(offset.to_le_bytes());
        offset += length * width.bytes();
    }
    (0..=lengths.len() as u64).for_each(|sequence| bytes.extend(sequence.to_le_bytes()));
    bytes
}
