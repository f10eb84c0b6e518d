//! The official binary form: files of records of one label byte and 3,072 pixel bytes.
//!
//! The pixels are 32 rows of 32 red values, then the green values, then the blue values
//! (<https://www.cs.toronto.edu/~kriz/cifar.html>).

use crate::dataset::Split;
use crate::encoded::check_label;
use crate::error::{DataError, Result};
use crate::image_catalog::{Header, ImageCatalog};
use crate::lines::LinesFile;
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
    /// Each file and the index of its first image, in order.
    files: Vec<(PathBuf, usize)>,
}

/// The file of the class names.
const CLASS_NAMES: &str = "batches.meta.txt";

/// Checks that no number is left out among `data_batch_1.bin`, `data_batch_2.bin`, ….
fn check_numbers(files: &[PathBuf]) -> Result<()> {
    let number = |file: &PathBuf| -> Option<usize> {
        file.file_stem()?.to_str()?.strip_prefix("data_batch_")?.parse().ok()
    };
    let Some(last) = files.iter().filter_map(number).max() else { return Ok(()) };
    match (1..last.min(files.len() + 1))
        .find(|wanted| !files.iter().any(|file| number(file) == Some(*wanted)))
    {
        Some(missing) => {
            let file = files[0].with_file_name(format!("data_batch_{missing}.bin"));
            Err(DataError::file(&file, format!("the file is missing, but data_batch_{last}.bin exists")))
        }
        None => Ok(()),
    }
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
    let path = folder.join(CLASS_NAMES);
    if !path.is_file() {
        return Ok(super::default_class_names());
    }
    let lines = LinesFile::read(&path)?;
    let names: Vec<String> = lines.lines().map(|(_, name)| name.to_owned()).collect();
    if names.is_empty() {
        return Err(DataError::ClassNames { path, reason: "the file is empty".to_string() });
    }
    Ok(names)
}

impl BinaryDataset {
    /// Reads the files of a split from one folder, and checks every label.
    pub(crate) fn read(files: &[PathBuf], folder: &Path, split: Split, caption_seed: u64) -> Result<Self> {
        check_numbers(files)?;
        let class_names = class_names(folder)?;
        let (mut bytes, mut first_of_files) = (Vec::new(), Vec::new());
        for file in files {
            first_of_files.push((file.clone(), bytes.len() / RECORD));
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
        let header = Header {
            name: format!("cifar10/{split}"),
            class_names,
            caption_seed,
            classes_from: folder.join(CLASS_NAMES),
            files: files.to_vec(),
            ..Header::default()
        };
        Ok(Self { header, bytes, files: first_of_files })
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

    fn path_of(&self, index: usize) -> PathBuf {
        let after = self.files.partition_point(|(_, first)| *first <= index);
        let (file, first) = &self.files[after - 1];
        file.join((index - first).to_string())
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        let pixels = &self.record(index)[1..];
        Ok(RgbImage::from_fn(SIDE as u32, SIDE as u32, |x, y| {
            let at = y as usize * SIDE + x as usize;
            Rgb([pixels[at], pixels[PLANE + at], pixels[2 * PLANE + at]])
        }))
    }
}
