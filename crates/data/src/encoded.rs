//! Images in memory as they were compressed, decoded one at a time.

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, check_index};
use crate::decode::decode;
use crate::error::{DataError, Result};
use image::RgbImage;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Compressed images one after the other, with their labels and where each came from.
///
/// One allocation for all bytes: a dataset of small images would otherwise spend more on
/// bookkeeping than on pictures.
#[derive(Debug, Default)]
pub(crate) struct EncodedImages {
    bytes: Vec<u8>,
    /// Where each image ends in `bytes`.
    ends: Vec<usize>,
    labels: Vec<u32>,
    /// Each file with its first sample's index, in order.
    files: Vec<(PathBuf, usize)>,
}

impl EncodedImages {
    /// Says that the images that follow are from a file.
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

    /// The file and the row in it of a sample that exists.
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

/// A dataset over [`EncodedImages`].
#[derive(Debug)]
pub(crate) struct EncodedDataset {
    pub(crate) name: String,
    pub(crate) images: EncodedImages,
    pub(crate) class_names: Vec<String>,
    pub(crate) caption_seed: u64,
}

impl Dataset for EncodedDataset {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let sample = self.without_pixels(index, epoch)?;
        let (file, row) = self.images.source(index);
        let image = decode(&self.images.bytes[self.images.range(index)])
            .map_err(|reason| DataError::CorruptImage { file: file.to_path_buf(), row, reason })?;
        Ok(CaptionedImage { image, ..sample })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let label = self.label(index)?;
        let caption = captions::varied(&self.class_names[label as usize], self.caption_seed, epoch, index);
        Ok(CaptionedImage::new(RgbImage::default(), label, caption))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }
}

impl Labelled for EncodedDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.len())?;
        Ok(self.images.labels[index])
    }
}

/// Checks that a label read from a file is a class.
pub(crate) fn check_label(label: i64, num_classes: usize, file: &Path, row: usize) -> Result<u32> {
    match u32::try_from(label) {
        Ok(good) if (good as usize) < num_classes => Ok(good),
        _ => Err(DataError::LabelOutOfRange { file: file.to_path_buf(), row, label, num_classes }),
    }
}
