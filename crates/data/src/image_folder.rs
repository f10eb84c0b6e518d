//! Images in class folders: `<path>/<split>/<class>/<image>`.
//!
//! The folder of the training split is `train`, or the dataset's folder itself if it has only class folders. That of the
//! test split is `test`, `val`, `valid` or `validation`. The classes of both splits are the folders of the training
//! split, sorted: a class without test images does not shift the labels of the others. Files are read by
//! [`Dataset::get`](crate::Dataset::get).

use crate::dataset::{Split, check_index};
use crate::decode::decode_file;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::{ENDINGS, FileList};
use crate::folder_listing::{FolderListing, UnreadFiles, class_folders, files_outside_classes};
use crate::image_catalog::{Header, ImageCatalog};
use image::RgbImage;
use std::path::{Path, PathBuf};

/// A dataset of class folders.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    header: Header,
    files: FileList,
}

impl ImageFolder {
    /// Lists one split, with caption seed 0 and no exclusions.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class that the training
    /// split lacks.
    pub fn open(path: impl AsRef<Path>, split: Split) -> Result<Self> {
        Self::open_seeded(path, split, 0, &Exclusions::default())
    }

    /// Lists one split without the excluded files.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class that the training
    /// split lacks.
    pub fn open_seeded(
        path: impl AsRef<Path>,
        split: Split,
        caption_seed: u64,
        excluded: &Exclusions,
    ) -> Result<Self> {
        let path = path.as_ref();
        if !path.is_dir() {
            return Err(DataError::NoFolder(path.to_path_buf()));
        }
        let (root, train) = match split {
            Split::Train => (train_folder(path)?, train_folder(path)?),
            Split::Test => {
                let (root, train) = (test_folder(path)?, path.join(Split::Train.name()));
                // Test images alone can be evaluated.
                (root.clone(), if train.is_dir() { train } else { root })
            }
        };
        let classes = class_folders(&train)?;
        let listed = list_classes(&root, &classes, &train, excluded)?;
        let folder = path.file_name().map_or("images".into(), |name| name.to_string_lossy());
        let header = Header {
            name: format!("{folder}/{split}"),
            class_names: classes,
            caption_seed,
            classes_from: train,
            notes: listed.notes(split),
            ..Header::default()
        };
        Ok(Self::new(header, listed.files))
    }

    /// Makes a dataset of listed files; labels are indices into the class names of the header.
    pub(crate) fn new(header: Header, files: FileList) -> Self {
        Self { header, files }
    }

    /// Returns the path of an image.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn file(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.header.name, index, self.files.len())?;
        Ok(self.files.path(index))
    }
}

/// The folders of a test split, in the order of preference.
pub const TEST_FOLDERS: [&str; 4] = ["test", "val", "valid", "validation"];

/// Returns the folder of the training split: `train`, or `path` itself if it holds only classes.
fn train_folder(path: &Path) -> Result<PathBuf> {
    let train = path.join(Split::Train.name());
    let is_split = |name: &String| TEST_FOLDERS.contains(&name.as_str());
    if !train.is_dir() && class_folders(path)?.iter().any(is_split) {
        return Err(DataError::NoFolder(train));
    }
    Ok(if train.is_dir() { train } else { path.to_path_buf() })
}

/// Returns the folder of the test split.
///
/// # Errors
/// If there is none.
fn test_folder(path: &Path) -> Result<PathBuf> {
    let found = TEST_FOLDERS.iter().map(|name| path.join(name)).find(|folder| folder.is_dir());
    found.ok_or_else(|| {
        let looked_for = format!("one of the folders {}", TEST_FOLDERS.join(", "));
        DataError::NoTestSplit { path: path.to_path_buf(), looked_for }
    })
}

/// The files of a split, and those that are not read.
#[derive(Debug, Default)]
pub(crate) struct ListedFiles {
    pub(crate) files: FileList,
    pub(crate) unread: UnreadFiles,
}

impl ListedFiles {
    /// Describes the files that are not read.
    pub(crate) fn notes(&self, split: Split) -> Vec<String> {
        self.unread.describe().into_iter().map(|files| format!("{split} images: {files}")).collect()
    }
}

/// Lists the images in the class folders of `root`. `classes` are the class folders of `train`.
///
/// # Errors
/// If a folder cannot be listed, is not a class, or has no image; or there are no images.
pub(crate) fn list_classes(
    root: &Path,
    classes: &[String],
    train: &Path,
    excluded: &Exclusions,
) -> Result<ListedFiles> {
    let mut listed = ListedFiles { unread: files_outside_classes(root)?, ..ListedFiles::default() };
    let is_training = root == train;
    for class in class_folders(root)? {
        let Some(label) = classes.iter().position(|name| *name == class) else {
            let reason = format!("class {class} is not in {}", train.display());
            return Err(DataError::ClassNames { path: root.to_path_buf(), reason });
        };
        let folder = root.join(&class);
        let FolderListing { images, unread } = FolderListing::read(&folder)?;
        if images.is_empty() && (is_training || !unread.is_empty()) {
            return Err(no_image(&folder, &unread));
        }
        listed.unread.add(unread);
        listed.files.begin_folder(folder.clone());
        for name in images.iter().filter(|name| !excluded.contains(&folder.join(name))) {
            listed.files.push(name, label as u32);
        }
    }
    if listed.files.len() == 0 {
        let looked_for = format!("<class>/*.{{{}}}", ENDINGS.join(","));
        return Err(DataError::Unrecognised { path: root.to_path_buf(), looked_for });
    }
    Ok(listed)
}

/// Makes the error of a class folder without images.
fn no_image(folder: &Path, unread: &UnreadFiles) -> DataError {
    let found = if unread.is_empty() { "it is empty".to_owned() } else { unread.describe().join("; ") };
    let reason = format!(
        "a class folder without images (.{}): {found}; convert or move the images, or remove the folder",
        ENDINGS.join(", .")
    );
    DataError::file(folder, reason)
}

impl ImageCatalog for ImageFolder {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.files.len()
    }

    fn label_of(&self, index: usize) -> u32 {
        self.files.label(index)
    }

    fn path_of(&self, index: usize) -> PathBuf {
        self.files.path(index)
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        decode_file(&self.files.path(index))
    }
}
