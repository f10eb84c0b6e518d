//! CIFAR-10 in any of its three published forms.
//!
//! The contents of the folder determine the form:
//!
//! | form | files, in the folder itself or in |
//! |---|---|
//! | official binary | `data_batch_*.bin`, `test_batch.bin`, `batches.meta.txt`; `cifar-10-batches-bin` |
//! | Hugging Face parquet | `train-*.parquet`, `test-*.parquet`; `data`, `plain_text` |
//! | folder of class folders | `train/<class>/*.png`, `test/<class>/*.png` |
//!
//! Other datasets in the second and third form open as well, with any number of classes and any image size.

mod binary;

use crate::captioned_image::ImageDataset;
use crate::dataset::Split;
use crate::encoded::EncodedDataset;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::image_catalog::Header;
use crate::image_folder::{ImageFolder, TEST_FOLDERS};
use crate::numbered_files::check_complete;
use crate::parquet;
use binary::BinaryDataset;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// CIFAR-10's classes in the order of their labels.
pub const CLASS_NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

fn default_class_names() -> Vec<String> {
    CLASS_NAMES.map(String::from).to_vec()
}

/// Opens one split in any of the forms, with caption seed 0 and no exclusions.
///
/// # Errors
/// If no form is recognised, or a file is unreadable, truncated, or has a label out of range. A corrupt image is an
/// error of [`Dataset::get`](crate::Dataset::get).
pub fn open_cifar10(path: impl AsRef<Path>, split: Split) -> Result<Arc<ImageDataset>> {
    open_cifar10_seeded(path, split, 0, &Exclusions::default())
}

/// Opens one split in any of the forms. Files in class folders can be excluded; in the other forms an image has no file
/// of its own.
///
/// # Errors
/// If no form is recognised, or a file is unreadable, truncated, or has a label out of range. A corrupt image is an
/// error of [`Dataset::get`](crate::Dataset::get).
pub fn open_cifar10_seeded(
    path: impl AsRef<Path>,
    split: Split,
    caption_seed: u64,
    excluded: &Exclusions,
) -> Result<Arc<ImageDataset>> {
    let path = path.as_ref();
    if !path.is_dir() {
        return Err(DataError::NoFolder(path.to_path_buf()));
    }
    for folder in [path.to_path_buf(), path.join("cifar-10-batches-bin")] {
        let files = binary::files(&folder, split)?;
        if !files.is_empty() {
            return Ok(Arc::new(BinaryDataset::read(&files, &folder, split, caption_seed)?));
        }
    }
    for folder in [path.to_path_buf(), path.join("data"), path.join("plain_text")] {
        let files = parquet_files(&folder, split)?;
        if !files.is_empty() {
            check_complete(&files)?;
            let (images, class_names) = parquet::read(&files, default_class_names())?;
            let header = Header {
                name: format!("cifar10/{split}"),
                class_names,
                caption_seed,
                classes_from: files[0].clone(),
                files,
                ..Header::default()
            };
            return Ok(Arc::new(EncodedDataset { header, images }));
        }
    }
    if path.join("train").is_dir() || path.join(split.name()).is_dir() {
        return Ok(Arc::new(ImageFolder::open_seeded(path, split, caption_seed, excluded)?));
    }
    let looked_for = match split {
        Split::Train => {
            "data_batch_*.bin (also in cifar-10-batches-bin), train-*.parquet (also in data or plain_text), train/<class>/*.png"
        }
        Split::Test => {
            "test_batch.bin (also in cifar-10-batches-bin), test-*.parquet or validation-*.parquet (also in data or plain_text), test/<class>/*.png"
        }
    };
    let (path, looked_for) = (path.to_path_buf(), looked_for.to_owned());
    match split {
        Split::Train => Err(DataError::Unrecognised { path, looked_for }),
        Split::Test => Err(DataError::NoTestSplit { path, looked_for }),
    }
}

/// Lists the parquet files of a split, sorted; empty if there are none. A test split may have another name, too.
fn parquet_files(folder: &Path, split: Split) -> Result<Vec<PathBuf>> {
    let names: &[&str] = match split {
        Split::Train => &["train"],
        Split::Test => &TEST_FOLDERS,
    };
    for name in names {
        let prefix = format!("{name}-");
        let files = files_named(folder, |name| name.starts_with(&prefix) && name.ends_with(".parquet"))?;
        if !files.is_empty() {
            return Ok(files);
        }
    }
    Ok(Vec::new())
}

/// Lists the files of a folder whose names are wanted, sorted; empty if the folder does not exist.
fn files_named(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |error| DataError::io(folder, error);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().and_then(|name| name.to_str()).is_some_and(&wanted) && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
