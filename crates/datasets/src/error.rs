//! Errors of the images that a configuration names.

use std::path::PathBuf;

use phalanx_config::DataKind;
use phalanx_data::DataError;
use phalanx_run::RunError;

/// The reason why the images of a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The configuration does not say where the images are.
    #[error("the images of data.kind = {kind} are read: add --data {kind}=PATH")]
    NoPath {
        /// The kind of the images.
        kind: DataKind,
    },
    /// The configuration does not say where the images are, which have the classes.
    #[error(
        "the classes of data.kind = {kind} are those of its images: name their folder by data.path, or by the option --data {kind}=PATH"
    )]
    NoPathOfClasses {
        /// The kind of the images.
        kind: DataKind,
    },
    /// There are no images for testing, and the run needs them.
    #[error(
        "{0}; data.test_fraction = 0.1 holds out a tenth of the training images, and eval.enabled = false trains without testing"
    )]
    NoTestSplit(#[source] DataError),
    /// Classes are needed, and the images have none.
    #[error(
        "{}",
        match kind {
            DataKind::Shards => "the samples of the shards have no classes, which a member .cls would hold".to_owned(),
            kind => format!("the images of data.kind = {kind} have captions and no classes"),
        }
    )]
    NoClasses {
        /// The kind of the images.
        kind: DataKind,
    },
    /// A size is none of an image.
    #[error("{key} {size} is too large")]
    TooLarge {
        /// The key.
        key: &'static str,
        /// Its value.
        size: usize,
    },
    /// A label means another class than in training.
    #[error(
        "the classes of {images} are not those that the model was trained on: {problem}; a label must mean the same class"
    )]
    OtherClasses {
        /// The images.
        images: String,
        /// The first difference.
        problem: String,
    },
    /// A label means another class in the test split than in the training split.
    #[error(
        "the classes of the test split ({test}) are not those of the training split ({train}): {problem}; a label must mean the \
         same class in both"
    )]
    SplitClasses {
        /// The test images, and the file that names their classes.
        test: String,
        /// The training images, and the file that names their classes.
        train: String,
        /// The first difference.
        problem: String,
    },
    /// A label means another class than in the run so far.
    #[error(
        "{path}: label {label} was `{before}` in the run so far and is `{now}` now; restore the classes, or begin a new run"
    )]
    MovedClass {
        /// The configured path of the images.
        path: String,
        /// The label.
        label: usize,
        /// The class so far.
        before: String,
        /// The class now.
        now: String,
    },
    /// Images without classes cannot be written as class folders.
    #[error("the images have no classes, so there are no class folders to write")]
    NothingToWrite,
    /// Images are written only into an empty folder.
    #[error("{} is not empty; choose another folder", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A file or folder cannot be written.
    #[error("cannot {action} {}: {problem}", path.display())]
    Write {
        /// The attempted action.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        problem: String,
    },
    /// The images cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The record of the images cannot be written.
    #[error(transparent)]
    Run(#[from] RunError),
}
