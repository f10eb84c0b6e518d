//! Images in class folders: `<path>/<split>/<class>/<image>`.
//!
//! The classes are the folders of `train`, sorted, for both splits, so that a class without test
//! images does not shift the others' labels. Files are read when a sample is asked for.

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::decode::decode_file;
use crate::error::{DataError, Result};
use crate::exclusions::Exclusions;
use crate::file_list::{ENDINGS, FileList, class_folders, images_in};
use image::RgbImage;
use std::path::{Path, PathBuf};

/// A dataset over class folders.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    name: String,
    class_names: Vec<String>,
    files: FileList,
    caption_seed: u64,
}

impl ImageFolder {
    /// Lists one split; captions vary with seed 0.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class
    /// that the training split lacks.
    pub fn open(path: impl AsRef<Path>, split: Split) -> Result<Self> {
        Self::open_seeded(path, split, 0, &Exclusions::default())
    }

    /// Lists one split without what is excluded; captions vary with a seed.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class
    /// that the training split lacks.
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

    /// A dataset of these files, whose labels are indices into the names.
    pub(crate) fn new(name: String, class_names: Vec<String>, files: FileList, caption_seed: u64) -> Self {
        Self { name, class_names, files, caption_seed }
    }

    /// The file of a sample.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn file(&self, index: usize) -> Result<PathBuf> {
        check_index(&self.name, index, self.files.len())?;
        Ok(self.files.path(index))
    }
}

/// The images in the class folders of `root`, each of which is one of `classes`, those of `train`.
///
/// # Errors
/// If a folder cannot be listed, is no class, or there are no images.
pub(crate) fn list_classes(
    root: &Path,
    classes: &[String],
    train: &Path,
    excluded: &Exclusions,
) -> Result<FileList> {
    let mut files = FileList::default();
    for class in class_folders(root)? {
        let Some(label) = classes.iter().position(|name| *name == class) else {
            let reason = format!("class {class} is not among those of {}", train.display());
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

impl Dataset for ImageFolder {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let sample = self.without_pixels(index, epoch)?;
        Ok(CaptionedImage { image: decode_file(&self.files.path(index))?, ..sample })
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

impl Labelled for ImageFolder {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.files.len())?;
        Ok(self.files.label(index))
    }
}
