//! Datasets: items of any type by index.

use crate::attribute::Attribute;
use crate::error::{DataError, Result};
use std::path::{Path, PathBuf};

/// A part of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// For training.
    Train,
    /// Held out.
    Test,
}

impl Split {
    /// `"train"` or `"test"`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Train => "train",
            Self::Test => "test",
        }
    }
}

impl std::fmt::Display for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Split {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "train" => Ok(Self::Train),
            "test" => Ok(Self::Test),
            _ => Err(DataError::config("split", format!("{text:?} is neither \"train\" nor \"test\""))),
        }
    }
}

/// Samples by index.
///
/// Opening a dataset only indexes it. [`get`](Dataset::get) reads and decodes, so that the work runs on the loader's
/// threads. The same index and epoch always give the same sample.
pub trait Dataset: Send + Sync {
    /// The type of a sample: an image with its caption, a sequence of tokens, a point, …
    type Item;

    /// Returns a short name for messages, such as `"cifar10/train"`.
    fn name(&self) -> &str;

    /// Returns the number of samples.
    fn len(&self) -> usize;

    /// Returns true without samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a sample. Its random parts depend on `epoch` and `index` alone (see [`rng`](crate::rng)).
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len), or the sample cannot be read or decoded.
    fn get(&self, index: usize, epoch: u64) -> Result<Self::Item>;

    /// Returns the sample of [`get`](Dataset::get), possibly with an empty image of 0×0 pixels, for a consumer that has
    /// the pixels. By default it returns the whole sample.
    ///
    /// # Errors
    /// As for [`get`](Dataset::get).
    fn without_pixels(&self, index: usize, epoch: u64) -> Result<Self::Item> {
        self.get(index, epoch)
    }

    /// Returns true if the pixels of a sample are the same in every epoch and
    /// [`without_pixels`](Dataset::without_pixels) leaves them out, so that caching them is useful. False by default.
    fn has_fixed_pixels(&self) -> bool {
        false
    }

    /// Returns the lengths of the chunks that are stored contiguously, in the order of the indices, if sequential
    /// reading is faster than random access: the [tar archives](crate::archives). `None` if the order does not matter.
    fn chunks(&self) -> Option<Vec<usize>> {
        None
    }

    /// Returns the length of each sample, such as its tokens, if micro-batches of similar lengths take less time, because shorter samples are
    /// padded. `None` by default.
    fn lengths(&self) -> Option<Vec<u32>> {
        None
    }

    /// Returns what the user should know of the files, such as the number of files that are not read; nothing by
    /// default.
    fn notes(&self) -> &[String] {
        &[]
    }

    /// Returns the file of a sample. For a sample of an archive or a table, its key or row follows as a further
    /// component: `s-000.tar/000017`. By default it is the dataset's name and the index.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len), or the file cannot be read.
    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(self.name(), index, self.len())?;
        Ok(Path::new(self.name()).join(index.to_string()))
    }

    /// Returns the weight of a sample in an epoch, as [`get`](Dataset::get) returns it there: its loss is multiplied by the weight, and the sum over the global batch is
    /// divided by the sum of the weights. 1 by default. It must be cheap, since every rank asks for the weights of the
    /// whole global batch.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len).
    fn weight(&self, index: usize, _: u64) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        Ok(1.0)
    }
}

/// A dataset whose samples have classes.
pub trait LabelledDataset: Dataset {
    /// Returns the classes, in the order of their labels.
    fn class_names(&self) -> &[String];

    /// Returns a sample's label without reading the sample: an index into
    /// [`class_names`](LabelledDataset::class_names).
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len).
    fn label(&self, index: usize) -> Result<u32>;

    /// Returns the attributes of every sample; none by default.
    fn attributes(&self) -> &[Attribute] {
        &[]
    }

    /// Returns the tables, lists and archives that the samples come from, without files of single samples.
    fn files(&self) -> &[PathBuf] {
        &[]
    }

    /// Returns the file or the folder that names the classes, for messages; `None` if none does.
    fn classes_from(&self) -> Option<&Path> {
        None
    }
}

/// Returns the path of the first sample whose label is not below `classes`.
///
/// # Errors
/// If a label or a path cannot be read.
pub fn sample_beyond<D: LabelledDataset + ?Sized>(dataset: &D, classes: usize) -> Result<Option<PathBuf>> {
    for index in 0..dataset.len() {
        if dataset.label(index)? as usize >= classes {
            return dataset.sample_path(index).map(Some);
        }
    }
    Ok(None)
}

/// Checks an index, for implementations of [`Dataset::get`].
///
/// # Errors
/// If `index` is not below `len`; the error names the dataset.
pub fn check_index(dataset: &str, index: usize, len: usize) -> Result<()> {
    if index < len {
        Ok(())
    } else {
        Err(DataError::IndexOutOfRange { dataset: dataset.to_string(), index, len })
    }
}
