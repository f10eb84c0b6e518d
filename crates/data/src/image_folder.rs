//! Images in class folders: `<path>/<split>/<class>/<image>`.
//!
//! The classes of both splits are the folders of `train`, sorted: a class without test images does not shift the labels
//! of the others. Files are read by [`Dataset::get`](crate::Dataset::get).

use crate::dataset::{Split, check_index};
use crate::decode::decode_file;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::{ENDINGS, FileList, class_folders, images_in};
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
        let root = path.join(split.name());
        if let Some(missing) = [path, &root].into_iter().find(|folder| !folder.is_dir()) {
            return Err(DataError::NoFolder(missing.to_path_buf()));
        }
        let train = path.join(Split::Train.name());
        let classes = class_folders(if train.is_dir() { &train } else { &root })?;
        let files = list_classes(&root, &classes, &train, excluded)?;
        let folder = path.file_name().map_or("images".into(), |name| name.to_string_lossy());
        Ok(Self::new(format!("{folder}/{split}"), classes, files, caption_seed))
    }

    /// Makes a dataset of listed files; labels are indices into `class_names`.
    pub(crate) fn new(name: String, class_names: Vec<String>, files: FileList, caption_seed: u64) -> Self {
        Self { header: Header { name, class_names, attributes: Vec::new(), caption_seed }, files }
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

/// Lists the images in the class folders of `root`. `classes` are the class folders of `train`.
///
/// # Errors
/// If a folder cannot be listed or is not a class, or there are no images.
pub(crate) fn list_classes(
    root: &Path,
    classes: &[String],
    train: &Path,
    excluded: &Exclusions,
) -> Result<FileList> {
    let mut files = FileList::default();
    for class in class_folders(root)? {
        let Some(label) = classes.iter().position(|name| *name == class) else {
            let reason = format!("class {class} is not in {}", train.display());
            return Err(DataError::ClassNames { path: root.to_path_buf(), reason });
        };
        let folder = root.join(&class);
        files.begin_folder(folder.clone());
        for name in images_in(&folder)?.iter().filter(|name| !excluded.contains(&folder.join(name))) {
            files.push(name, label as u32);
        }
    }
    if files.len() == 0 {
        let looked_for = format!("<class>/*.{{{}}}", ENDINGS.join(","));
        return Err(DataError::Unrecognised { path: root.to_path_buf(), looked_for });
    }
    Ok(files)
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

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        decode_file(&self.files.path(index))
    }
}
