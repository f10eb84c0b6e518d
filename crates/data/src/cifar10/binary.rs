//! The official binary form: files of records of one label byte and 3,072 pixel bytes.
//!
//! The pixels are 32 rows of 32 red values, then the green values, then the blue values
//! (<https://www.cs.toronto.edu/~kriz/cifar.html>).

use crate::dataset::Split;
use crate::encoded::check_label;
use crate::error::{DataError, Result};
use crate::image_catalog::{Header, ImageCatalog};
use image::{Rgb, RgbImage};
use std::path::{Path, PathBuf};

/// Width and height of every image.
const SIDE: usize = 32;
/// The number of values of one channel.
const PLANE: usize = SIDE * SIDE;
/// The length of a record: a label and three channels.
const RECORD: usize = 1 + 3 * PLANE;

/// One split in memory, as it is on disk.
#[derive(Debug)]
pub(crate) struct BinaryDataset {
    header: Header,
    bytes: Vec<u8>,
}

/// Lists the files of a split, sorted by name; empty if the folder has another form.
pub(crate) fn files(folder: &Path, split: Split) -> Result<Vec<PathBuf>> {
    let wanted = |name: &str| match split {
        Split::Train => name.starts_with("data_batch_") && name.ends_with(".bin"),
        Split::Test => name == "test_batch.bin",
    };
    super::files_named(folder, wanted)
}

/// Reads the class names from `batches.meta.txt`, if it exists.
fn class_names(folder: &Path) -> Result<Vec<String>> {
    let path = folder.join("batches.meta.txt");
    match crate::Links::Follow.read_text(&path) {
        Ok(text) => {
            let names: Vec<String> =
                text.lines().map(str::trim).filter(|l| !l.is_empty()).map(String::from).collect();
            if names.is_empty() {
                return Err(DataError::ClassNames { path, reason: "the file is empty".to_string() });
            }
            Ok(names)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(super::default_class_names()),
        Err(error) => Err(DataError::io(&path, error)),
    }
}

impl BinaryDataset {
    /// Reads the files of a split from one folder, and checks every label.
    pub(crate) fn read(files: &[PathBuf], folder: &Path, split: Split, caption_seed: u64) -> Result<Self> {
        let class_names = class_names(folder)?;
        let mut bytes = Vec::new();
        for file in files {
            let contents = crate::Links::Follow.read(file).map_err(|error| DataError::io(file, error))?;
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
        let name = format!("cifar10/{split}");
        Ok(Self { header: Header { name, class_names, attributes: Vec::new(), caption_seed }, bytes })
    }

    fn record(&self, index: usize) -> &[u8] {
        &self.bytes[index * RECORD..(index + 1) * RECORD]
    }
}

impl ImageCatalog for BinaryDataset {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.bytes.len() / RECORD
    }

    fn label_of(&self, index: usize) -> u32 {
        u32::from(self.record(index)[0])
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        let pixels = &self.record(index)[1..];
        Ok(RgbImage::from_fn(SIDE as u32, SIDE as u32, |x, y| {
            let at = y as usize * SIDE + x as usize;
            Rgb([pixels[at], pixels[PLANE + at], pixels[2 * PLANE + at]])
        }))
    }
}
