//! Documents: the texts of files and folders, one after the other.
//!
//! | ending | documents |
//! |---|---|
//! | `.jsonl`, `.ndjson` | the text of each line, an object |
//! | `.parquet` | the text of each row |
//! | any other | the whole file, UTF-8 |

mod files;
mod json_lines;
mod labelled;
mod plain;
mod split;

use std::path::{Path, PathBuf};

use phalanx_data::{DataError, Result, read_parquet_texts};

pub use labelled::{LabelKeys, LabelledDocument, LabelledDocuments};
pub(crate) use split::{SplitRule, split_of};

/// The settings of [`Documents`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DocumentsConfig {
    /// The key of a line of JSON, or the column of a table, that has the text.
    pub field: String,
    /// The endings of the files of folders that are read, without a dot; empty = all files.
    pub endings: Vec<String>,
}

impl Default for DocumentsConfig {
    fn default() -> Self {
        Self { field: "text".to_owned(), endings: Vec::new() }
    }
}

/// A passage of a document: all of it, or a part of a long plain text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The text.
    pub text: String,
    /// True if the document ends with it.
    pub ends: bool,
}

/// The texts of files and folders. Folders are read with their subfolders, in the order of the names.
#[derive(Debug, Clone)]
pub struct Documents {
    files: Vec<PathBuf>,
    config: DocumentsConfig,
}

impl Documents {
    /// Finds the files.
    ///
    /// # Errors
    /// If a path does not exist, or a folder has no file with one of the endings.
    pub fn open(paths: &[PathBuf], config: DocumentsConfig) -> Result<Self> {
        let mut files = Vec::new();
        for path in paths {
            match path.is_dir() {
                true => files.extend(files::of_folder(path, &config.endings)?),
                false => {
                    std::fs::metadata(path).map_err(|error| DataError::io(path, error))?;
                    files.push(path.clone());
                }
            }
        }
        Ok(Self { files, config })
    }

    /// The files, in the order in which they are read.
    #[must_use]
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// The bytes of all files, for progress.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().filter_map(|file| file.metadata().ok()).map(|found| found.len()).sum()
    }

    /// True if all is one file of plain text.
    #[must_use]
    pub fn is_one_text(&self) -> bool {
        matches!(self.files.as_slice(), [file] if !has_rows(file))
    }

    /// Calls `take` with each passage of a file, in order.
    ///
    /// # Errors
    /// If the file cannot be read or is malformed: the error names the line or the row; and errors of `take`.
    pub fn read(&self, file: &Path, take: &mut dyn FnMut(Passage) -> Result<()>) -> Result<()> {
        match ending(file) {
            "jsonl" | "ndjson" => json_lines::read(file, &self.config.field, take),
            "parquet" => read_parquet_texts(file, &self.config.field, &mut |texts| {
                texts.into_iter().try_for_each(|text| take(Passage { text, ends: true }))
            }),
            _ => plain::read(file, take),
        }
    }
}

/// The ending of a file.
fn ending(file: &Path) -> &str {
    file.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

/// True for a file of many documents.
pub(crate) fn has_rows(file: &Path) -> bool {
    ["jsonl", "ndjson", "parquet"].contains(&ending(file))
}
