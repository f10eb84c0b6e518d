//! Errors of this crate. Every variant names the file, the row or the setting.

use std::path::{Path, PathBuf};

/// The result of every fallible function of this crate.
pub type Result<T> = std::result::Result<T, DataError>;

/// A parsed or checked value, or the description of a problem. The caller adds the file or the line.
pub(crate) type ParseResult<T> = std::result::Result<T, String>;

/// An error of finding, reading, decoding, transforming or tokenising data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// Opening or reading a file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The folder does not exist.
    #[error("{}: no such folder", .0.display())]
    NoFolder(PathBuf),
    /// The data have no test split.
    #[error("{}: no test split; looked for {looked_for}", path.display())]
    NoTestSplit {
        /// The folder or the file that was searched.
        path: PathBuf,
        /// The accepted forms.
        looked_for: String,
    },
    /// A folder has none of the known forms.
    #[error("{}: nothing recognised here; looked for {looked_for}", path.display())]
    Unrecognised {
        /// The folder that was searched.
        path: PathBuf,
        /// The accepted forms.
        looked_for: String,
    },
    /// An image in a file of many does not decode.
    #[error("{}, row {row}: corrupt image: {reason}", file.display())]
    CorruptImage {
        /// The file that holds the image.
        file: PathBuf,
        /// The row in that file, from 0 (0 for a file that is one image).
        row: usize,
        /// The error of the decoder.
        reason: String,
    },
    /// An image file does not decode.
    #[error("{}: {reason}; replace the file, or exclude it", file.display())]
    ImageFile {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A line of a text file is malformed.
    #[error("{}, line {line}: {reason}", file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem and what is expected.
        reason: String,
    },
    /// A file is malformed.
    #[error("{}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The problem and what is expected.
        reason: String,
    },
    /// A sample of a tar archive cannot be used.
    #[error("{}, sample {key}: {reason}", archive.display())]
    ArchiveSample {
        /// The archive.
        archive: PathBuf,
        /// The sample's key: the name of its members up to the first dot.
        key: String,
        /// The problem and what is expected.
        reason: String,
    },
    /// A file ends within a record.
    #[error("{}, row {row}: truncated: the record needs {expected} bytes, the file has {found} left", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The truncated row, from 0.
        row: usize,
        /// The length of a record in bytes.
        expected: usize,
        /// The bytes left in the file.
        found: usize,
    },
    /// A label is out of range.
    #[error("{}, row {row}: label {label} is not in 0..{num_classes}", file.display())]
    LabelOutOfRange {
        /// The file.
        file: PathBuf,
        /// The row in that file, from 0.
        row: usize,
        /// The label found.
        label: i64,
        /// The number of classes.
        num_classes: usize,
    },
    /// A required value is null.
    #[error("{}, row {row}: column {column} is null", file.display())]
    NullValue {
        /// The file.
        file: PathBuf,
        /// The row in that file, from 0.
        row: usize,
        /// The column's path.
        column: String,
    },
    /// A parquet file cannot be read, or lacks the expected columns.
    #[error("{}: {reason}", file.display())]
    Parquet {
        /// The file.
        file: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The list of class names is missing, empty or too short.
    #[error("{}: class names: {reason}", path.display())]
    ClassNames {
        /// The file or folder of the names.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// An index is out of range.
    #[error("dataset {dataset}: index {index} is not in 0..{len}")]
    IndexOutOfRange {
        /// The dataset's name.
        dataset: String,
        /// The requested index.
        index: usize,
        /// The dataset's length.
        len: usize,
    },
    /// A text cannot be tokenised.
    #[error("text {name}: {reason}")]
    Text {
        /// The dataset's name.
        name: String,
        /// The problem.
        reason: String,
    },
    /// A sample cannot be used.
    #[error("sample {index} of {dataset}: {reason}")]
    Sample {
        /// The dataset's name.
        dataset: String,
        /// The sample's index.
        index: usize,
        /// The problem.
        reason: String,
    },
    /// The elements of an array do not fit its shape.
    #[error("an array of shape {shape:?}: {reason}")]
    ArrayShape {
        /// The shape.
        shape: Vec<usize>,
        /// The problem.
        reason: String,
    },
    /// A part of a batch does not fit the batch, or has another type than requested.
    #[error("`{name}` of a batch: {reason}")]
    Batch {
        /// The name of the part.
        name: String,
        /// The problem.
        reason: String,
    },
    /// A batch has no entry of a name.
    #[error("the batch has no {kind} `{name}`; it has {}", listed(known))]
    NoSuchArray {
        /// The kind of the requested entry.
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The known names.
        known: Vec<String>,
    },
    /// A batch was cancelled because it is not needed any more.
    #[error("the batch was cancelled")]
    Cancelled,
    /// A setting is invalid.
    #[error("{what}: {reason}")]
    Config {
        /// The setting, by its path in the configuration struct.
        what: &'static str,
        /// The reason, with the numbers.
        reason: String,
    },
    /// An image has a size that a transform cannot handle.
    #[error("image of {width}x{height} pixels: {reason}")]
    ImageSize {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The reason.
        reason: String,
    },
    /// The images of one batch have different sizes after the transform.
    #[error(
        "sample {index} of {dataset} is {found:?} (C, H, W) after the transform, but the first of the batch is {expected:?}; add a resize or a crop"
    )]
    MixedSizes {
        /// The dataset's name.
        dataset: String,
        /// The index of the sample that differs.
        index: usize,
        /// The shape of the first image of the batch.
        expected: [usize; 3],
        /// The shape of this image.
        found: [usize; 3],
    },
    /// A text has more tokens than the context.
    #[error(
        "text of {tokens} tokens, with start and end {total}, does not fit a context of {context}: {text:?}"
    )]
    TextTooLong {
        /// The number of tokens of the text.
        tokens: usize,
        /// The number of tokens with start and end.
        total: usize,
        /// The length of the context.
        context: usize,
        /// The beginning of the text.
        text: String,
    },
    /// A number is not a token.
    #[error("token {id} is not in 0..{vocab}")]
    UnknownToken {
        /// The number.
        id: u32,
        /// The size of the vocabulary.
        vocab: usize,
    },
    /// A file of merges is malformed.
    #[error("vocabulary: {0}")]
    Vocabulary(String),
    /// A worker thread could not be started.
    #[error("starting loader thread {worker}: {source}")]
    Thread {
        /// The number of the thread.
        worker: usize,
        /// The error of the operating system.
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
    /// All threads of a loader have ended.
    #[error("all {workers} loader threads ended before batch {step} of epoch {epoch} was made")]
    WorkersGone {
        /// The number of threads.
        workers: usize,
        /// The batch's epoch.
        epoch: u64,
        /// The batch's step in that epoch.
        step: usize,
    },
}

impl DataError {
    /// Adds a path to an I/O error.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// Makes an error about a file.
    pub fn file(path: &Path, reason: impl Into<String>) -> Self {
        Self::File { file: path.to_path_buf(), reason: reason.into() }
    }

    /// Makes an error about a sample, for datasets and collations outside this crate.
    pub fn sample(dataset: impl Into<String>, index: usize, reason: impl Into<String>) -> Self {
        Self::Sample { dataset: dataset.into(), index, reason: reason.into() }
    }

    /// Makes an error about a setting.
    pub fn config(what: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { what, reason: reason.into() }
    }
}

/// Lists names, or says that there are none.
fn listed(names: &[String]) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(", ") }
}
