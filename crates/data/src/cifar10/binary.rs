//! The official binary form: files of records, each one label byte and 3,072 bytes of pixels.
//!
//! The pixels are 32 rows of 32 red values, then the green, then the blue ones
//! (<https://www.cs.toronto.edu/~kriz/cifar.html>).

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::encoded::check_label;
use crate::error::{DataError, Result};
use image::{Rgb, RgbImage};
use std::path::{Path, PathBuf};

/// Width and height of every image.
const SIDE: usize = 32;
/// Values of one channel.
const PLANE: usize = SIDE * SIDE;
/// A label and three channels.
const RECORD: usize = 1 + 3 * PLANE;

/// The batches in memory, as they are on disk.
#[derive(Debug)]
pub(crate) struct BinaryDataset {
    name: String,
    class_names: Vec<String>,
    caption_seed: u64,
    bytes: Vec<u8>,
}

/// The files of a split that are in a folder, in the order of their names; none if it has another form.
pub(crate) fn files(folder: &Path, split: Split) -> Result<Vec<PathBuf>> {
    let wanted = |name: &str| match split {
        Split::Train => name.starts_with("data_batch_") && name.ends_with(".bin"),
        Split::Test => name == "test_batch.bin",
    };
    super::files_named(folder, wanted)
}

/// Class names from `batches.meta.txt`, if it is there.
fn class_names(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("batches.meta.txt");
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let names: Vec<String> =
                text.lines().map(str::trim).filter(|l| !l.is_empty()).map(String::from).collect();
            if names.is_empty() {
                return Err(DataError::ClassNames { path, reason: "no names in it".to_string() });
            }
            Ok(names)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(super::default_class_names()),
        Err(error) => Err(DataError::io(&path, error)),
    }
}

impl BinaryDataset {
    /// Reads the files of a split, all of which are in one folder, and checks every label.
    pub(crate) fn read(files: &[PathBuf], folder: &Path, split: Split, caption_seed: u64) -> Result<Self> {
        let class_names = class_names(folder)?;
        let mut bytes = Vec::new();
        for file in files {
            let contents = std::fs::read(file).map_err(|error| DataError::io(file, error))?;
            let rows = contents.len() / RECORD;
            let found = contents.len() % RECORD;
            if found != 0 || rows == 0 {
                return Err(DataError::Truncated { file: file.clone(), row: rows, expected: RECORD, found });
            }
            for (row, record) in contents.chunks_exact(RECORD).enumerate() {
                check_label(i64::from(record[0]), class_names.len(), file, row)?;
            }
            bytes.extend_from_slice(&contents);
        }
        Ok(Self { name: format!("cifar10/{split}"), class_names, caption_seed, bytes })
    }

    fn record(&self, index: usize) -> Result<&[u8]> {
        check_index(&self.name, index, self.len())?;
        Ok(&self.bytes[index * RECORD..(index + 1) * RECORD])
    }
}

impl Dataset for BinaryDataset {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.bytes.len() / RECORD
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let pixels = &self.record(index)?[1..];
        let image = RgbImage::from_fn(SIDE as u32, SIDE as u32, |x, y| {
            let at = y as usize * SIDE + x as usize;
            Rgb([pixels[at], pixels[PLANE + at], pixels[2 * PLANE + at]])
        });
        Ok(CaptionedImage { image, ..self.without_pixels(index, epoch)? })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let label = self.record(index)?[0];
        let class_name = &self.class_names[usize::from(label)];
        let caption = captions::varied(class_name, self.caption_seed, epoch, index);
        Ok(CaptionedImage::new(RgbImage::default(), u32::from(label), caption))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }
}

impl Labelled for BinaryDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        Ok(u32::from(self.record(index)?[0]))
    }
}
