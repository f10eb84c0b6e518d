//! What a dataset is: items of any kind by index, read when asked for.

use crate::attribute::Attribute;
use crate::error::{DataError, Result};

/// Which part of a dataset.
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
/// Opening a dataset indexes it; reading and decoding happen in [`get`](Dataset::get), so that they run on the
/// loader's threads. One index and one epoch always give one and the same sample.
pub trait Dataset: Send + Sync {
    /// What a sample is: an image with its caption, a sequence of tokens, a point, …
    type Item;

    /// A short name for messages, such as `"cifar10/train"`.
    fn name(&self) -> &str;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads a sample. What is random about it is drawn from `epoch` and `index` alone (see [`rng`](crate::rng)).
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len), or the sample cannot be read or decoded.
    fn get(&self, index: usize, epoch: u64) -> Result<Self::Item>;

    /// The sample of [`get`](Dataset::get) for somebody who has its pixels: an image in it may be empty, of 0 by 0, so that none is
    /// decoded. All of it unless said otherwise.
    ///
    /// # Errors
    /// As for [`get`](Dataset::get).
    fn without_pixels(&self, index: usize, epoch: u64) -> Result<Self::Item> {
        self.get(index, epoch)
    }

    /// Whether the pixels of a sample are the same in every epoch, and [`without_pixels`](Dataset::without_pixels) leaves them out,
    /// so that keeping them is of use. Not unless said otherwise.
    fn has_fixed_pixels(&self) -> bool {
        false
    }

    /// How many samples lie together on the disk, for each such chunk in the order of indices, where reading them one after
    /// the other is faster than in any order: the shards of [`shards`](crate::archives). `None` where the order does not matter.
    fn chunks(&self) -> Option<Vec<usize>> {
        None
    }

    /// How much a sample counts: its loss is multiplied with its weight, and the sum over the global batch divided by
    /// the sum of the weights. 1 unless said otherwise. It must be cheap, as every rank asks for the weights of the
    /// whole global batch.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len).
    fn weight(&self, index: usize) -> Result<f32> {
        check_index(self.name(), index, self.len())?;
        Ok(1.0)
    }
}

/// A dataset whose samples belong to classes.
pub trait Labelled: Dataset {
    /// The classes, in the order of their labels.
    fn class_names(&self) -> &[String];

    /// A sample's label, an index into [`class_names`](Labelled::class_names), without reading the sample.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len).
    fn label(&self, index: usize) -> Result<u32>;

    /// What is known of every sample beside its class; nothing unless said otherwise.
    fn attributes(&self) -> &[Attribute] {
        &[]
    }
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
