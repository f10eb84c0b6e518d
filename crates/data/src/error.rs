//! What can go wrong with data: every variant names the file, the row, or the setting at fault.

use std::path::{Path, PathBuf};

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, DataError>;

/// A value, or what is wrong with it in words, which the caller ties to a file or a line.
pub(crate) type Checked<T> = std::result::Result<T, String>;

/// What can go wrong while data is found, read, decoded, transformed or tokenised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// The operating system refused to open or read something.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// There is no such folder.
    #[error("{}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    /// A folder holds none of the forms that the loader knows.
    #[error("{}: nothing recognised here; looked for {looked_for}", path.display())]
    Unrecognised {
        /// The folder that was searched.
        path: PathBuf,
        /// The forms that would have been accepted.
        looked_for: String,
    },
    /// The bytes of one image do not decode.
    #[error("{}, row {row}: corrupt image: {reason}", file.display())]
    CorruptImage {
        /// The file that holds the image.
        file: PathBuf,
        /// The row in that file, from 0 (0 for a file that is one image).
        row: usize,
        /// What the decoder said.
        reason: String,
    },
    /// A file that is one image does not decode.
    #[error("{}: {reason}; replace the file, or exclude it", file.display())]
    ImageFile {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A line of a text file is not what it should be.
    #[error("{}, line {line}: {reason}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A file that is no list of lines is not what it should be.
    #[error("{}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A sample of a tar archive cannot be used.
    #[error("{}, sample {key}: {reason}", archive.display())]
    ArchiveSample {
        /// The archive.
        archive: PathBuf,
        /// The sample's key: the names of its members up to the first dot.
        key: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A file ends within a record.
    #[error("{}, row {row}: truncated: the record needs {expected} bytes, the file has {found} left", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The row that is cut, from 0.
        row: usize,
        /// Bytes that a record has.
        expected: usize,
        /// Bytes left in the file.
        found: usize,
    },
    /// A label is not the index of a class.
    #[error("{}, row {row}: label {label} is not in 0..{num_classes}", file.display())]
    LabelOutOfRange {
        /// The file.
        file: PathBuf,
        /// The row in that file, from 0.
        row: usize,
        /// The label found.
        label: i64,
        /// How many classes there are.
        num_classes: usize,
    },
    /// A row lacks a value that it must have.
    #[error("{}, row {row}: column {column} is null", file.display())]
    NullValue {
        /// The file.
        file: PathBuf,
        /// The row in that file, from 0.
        row: usize,
        /// The column's path.
        column: String,
    },
    /// A parquet file cannot be read, or its columns are not those expected.
    #[error("{}: {reason}", file.display())]
    Parquet {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The list of class names is missing, empty, or does not fit.
    #[error("{}: class names: {reason}", path.display())]
    ClassNames {
        /// The file or folder that should give the names.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// An index beyond the end of a dataset.
    #[error("dataset {dataset}: index {index} is not in 0..{len}")]
    IndexOutOfRange {
        /// The dataset's name.
        dataset: String,
        /// The index asked for.
        index: usize,
        /// The dataset's length.
        len: usize,
    },
    /// A text that cannot be made tokens of.
    #[error("text {name}: {reason}")]
    Text {
        /// The dataset's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A sample that cannot be used.
    #[error("sample {index} of {dataset}: {reason}")]
    Sample {
        /// The dataset's name.
        dataset: String,
        /// The sample's index.
        index: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// An array whose numbers and shape do not go together.
    #[error("an array of shape {shape:?}: {reason}")]
    ArrayShape {
        /// The shape.
        shape: Vec<usize>,
        /// What is wrong with it.
        reason: String,
    },
    /// A part of a batch does not fit the batch, or is not what was asked for.
    #[error("`{name}` of a batch: {reason}")]
    Batch {
        /// The part's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A batch has no array, or no list of texts, of a name.
    #[error("the batch has no {kind} `{name}`; it has {}", listed(there))]
    NoSuchArray {
        /// What was asked for: an array, or a list of texts.
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// The names that there are.
        there: Vec<String>,
    },
    /// A batch was given up because nobody wants it any more.
    #[error("the batch is not wanted any more")]
    Cancelled,
    /// A setting that cannot work.
    #[error("{what}: {reason}")]
    Config {
        /// The setting, by its path in the configuration struct.
        what: &'static str,
        /// Why it cannot work, with its numbers.
        reason: String,
    },
    /// An image of a size that a transform cannot take.
    #[error("image of {width}x{height} pixels: {reason}")]
    ImageSize {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// What it does not fit.
        reason: String,
    },
    /// Images of one batch have different sizes after the transform.
    #[error(
        "sample {index} of {dataset} is {found:?} (C, H, W) after the transform, but the batch began with {expected:?}; a resize or a crop is missing"
    )]
    MixedSizes {
        /// The dataset's name.
        dataset: String,
        /// The sample that differs.
        index: usize,
        /// The shape of the batch's first image.
        expected: [usize; 3],
        /// The shape of this one.
        found: [usize; 3],
    },
    /// A text has more tokens than the context holds.
    #[error(
        "text of {tokens} tokens, with start and end {total}, does not fit a context of {context}: {text:?}"
    )]
    TextTooLong {
        /// Tokens of the text itself.
        tokens: usize,
        /// Tokens of the text with its start and end.
        total: usize,
        /// The context's length.
        context: usize,
        /// How the text begins.
        text: String,
    },
    /// A number that is no token.
    #[error("token {id} is not in 0..{vocab}")]
    UnknownToken {
        /// The number.
        id: u32,
        /// The size of the vocabulary.
        vocab: usize,
    },
    /// A file of merges is damaged, or not one.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A loader's thread could not be started.
    #[error("starting loader thread {worker}: {source}")]
    Thread {
        /// Which of the threads.
        worker: usize,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// A dataset or a transform panicked while a batch was made.
    #[error("making batch {step} of epoch {epoch} panicked: {message}")]
    WorkerPanicked {
        /// The batch's epoch.
        epoch: u64,
        /// The batch's step in that epoch.
        step: usize,
        /// The panic's message.
        message: String,
    },
    /// All threads of a loader are gone.
    #[error("all {workers} loader threads ended before batch {step} of epoch {epoch} was made")]
    WorkersGone {
        /// How many there were.
        workers: usize,
        /// The batch's epoch.
        epoch: u64,
        /// The batch's step in that epoch.
        step: usize,
    },
}

impl DataError {
    /// Ties an operating system error to a path.
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// Something wrong with a whole file.
    pub(crate) fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { file: path.to_path_buf(), reason: reason.into() }
    }

    /// A sample that cannot be used, named by its dataset and index; for datasets and collations of one's own.
    pub fn sample(dataset: impl Into<String>, index: usize, reason: impl Into<String>) -> Self {
        Self::Sample { dataset: dataset.into(), index, reason: reason.into() }
    }

    /// A setting that cannot work.
    pub(crate) fn config(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { what, reason: reason.into() }
    }
}

/// Names as a list, or that there are none.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
