//! What a dataset is: samples by index, decoded when asked for.

use crate::error::{DataError, Result};
use image::RgbImage;

/// One sample, decoded.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The picture, 8 bits per channel.
    pub image: RgbImage,
    /// The index of its class in [`Dataset::class_names`].
    pub label: u32,
    /// A sentence that describes it.
    pub caption: String,
}

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
/// Opening a dataset indexes it; decoding happens in [`get`](Dataset::get), so that it runs on the
/// loader's threads. The same index and epoch always give the same sample.
pub trait Dataset: Send + Sync {
    /// A short name for messages, such as `"cifar10/train"`.
    fn name(&self) -> &str;

    /// How many samples there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The classes, in the order of their labels.
    fn class_names(&self) -> &[String];

    /// A sample's label without decoding its image.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len).
    fn label(&self, index: usize) -> Result<u32>;

    /// Decodes a sample. The epoch only chooses among wordings of the caption.
    ///
    /// # Errors
    /// If `index` is not below [`len`](Dataset::len), or the image cannot be read or decoded.
    fn get(&self, index: usize, epoch: u64) -> Result<Sample>;
}

/// Checks an index, for implementations of [`Dataset`].
pub(crate) fn check_index(dataset: &str, index: usize, len: usize) -> Result<()> {
    if index < len {
        Ok(())
    } else {
        Err(DataError::IndexOutOfRange { dataset: dataset.to_string(), index, len })
    }
}
