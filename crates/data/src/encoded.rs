//! Compressed images in memory, decoded one at a time.

use crate::decode::decode;
use crate::error::{DataError, Result};
use crate::image_catalog::{Header, ImageCatalog};
use image::RgbImage;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Compressed images with their labels and the file and row of each.
///
/// All bytes share one allocation: a dataset of small images would otherwise spend more memory on bookkeeping than on
/// pixels.
#[derive(Debug, Default)]
pub(crate) struct EncodedImages {
    bytes: Vec<u8>,
    /// The end of each image in `bytes`.
    ends: Vec<usize>,
    labels: Vec<u32>,
    /// Each file and the index of its first sample, in order.
    files: Vec<(PathBuf, usize)>,
}

impl EncodedImages {
    /// Starts a file: the images that follow belong to it.
    pub(crate) fn begin_file(&mut self, file: &Path) {
        self.files.push((file.to_path_buf(), self.len()));
    }

    pub(crate) fn push(&mut self, image: &[u8], label: u32) {
        self.bytes.extend_from_slice(image);
        self.ends.push(self.bytes.len());
        self.labels.push(label);
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the file of a sample and its row there.
    pub(crate) fn source(&self, index: usize) -> (&Path, usize) {
        let after = self.files.partition_point(|(_, first)| *first <= index);
        let (file, first) = &self.files[after - 1];
        (file, index - first)
    }

    fn range(&self, index: usize) -> Range<usize> {
        let begin = if index == 0 { 0 } else { self.ends[index - 1] };
        begin..self.ends[index]
    }
}

/// A dataset of compressed images in memory.
#[derive(Debug)]
pub(crate) struct EncodedDataset {
    pub(crate) header: Header,
    pub(crate) images: EncodedImages,
}

impl ImageCatalog for EncodedDataset {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.images.len()
    }

    fn label_of(&self, index: usize) -> u32 {
        self.images.labels[index]
    }

    fn path_of(&self, index: usize) -> PathBuf {
        let (file, row) = self.images.source(index);
        file.join(row.to_string())
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        let (file, row) = self.images.source(index);
        decode(&self.images.bytes[self.images.range(index)]).map_err(|reason| DataError::CorruptImage {
            file: file.to_path_buf(),
            row,
            reason,
        })
    }
}

/// Checks that a label is the index of a class.
pub(crate) fn check_label(label: i64, num_classes: usize, file: &Path, row: usize) -> Result<u32> {
    match u32::try_from(label) {
        Ok(good) if (good as usize) < num_classes => Ok(good),
        _ => Err(DataError::LabelOutOfRange { file: file.to_path_buf(), row, label, num_classes }),
    }
}
