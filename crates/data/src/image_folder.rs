//! Images in class folders: `<path>/<split>/<class>/<image>`.
//!
//! The classes are the folders of `train`, sorted, for both splits, so that a class without test
//! images does not shift the others' labels. Files are read when a sample is asked for.

use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::encoded::decode;
use crate::error::{DataError, Result};
use std::path::{Path, PathBuf};

/// The endings of files that count as images, in lower case; others are passed over.
const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];

/// A dataset over class folders.
#[derive(Debug, Clone)]
pub struct ImageFolder {
    name: String,
    class_names: Vec<String>,
    files: Vec<(PathBuf, u32)>,
    caption_seed: u64,
}

impl ImageFolder {
    /// Lists one split; captions vary with seed 0.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class
    /// that the training split lacks.
    pub fn open(path: impl AsRef<Path>, split: Split) -> Result<Self> {
        Self::open_seeded(path, split, 0)
    }

    /// Lists one split; captions vary with a seed.
    ///
    /// # Errors
    /// If a folder cannot be listed, there are no classes or no images, or the test split has a class
    /// that the training split lacks.
    pub fn open_seeded(path: impl AsRef<Path>, split: Split, caption_seed: u64) -> Result<Self> {
        let path = path.as_ref();
        let root = path.join(split.name());
        if let Some(missing) = [path, &root].into_iter().find(|folder| !folder.is_dir()) {
            return Err(DataError::NoFolder(missing.to_path_buf()));
        }
        let own = class_folders(&root)?;
        let train = path.join(Split::Train.name());
        let class_names =
            if split == Split::Train || !train.is_dir() { own.clone() } else { class_folders(&train)? };
        let mut files = Vec::new();
        for class in &own {
            let Some(label) = class_names.iter().position(|name| name == class) else {
                let reason = format!("class {class} is not among those of {}", train.display());
                return Err(DataError::ClassNames { path: root, reason });
            };
            files.extend(images_in(&root.join(class))?.into_iter().map(|file| (file, label as u32)));
        }
        if files.is_empty() {
            let looked_for = format!("<class>/*.{{{}}}", ENDINGS.join(","));
            return Err(DataError::Unrecognised { path: root, looked_for });
        }
        let folder = path.file_name().map_or("images".into(), |name| name.to_string_lossy());
        Ok(Self { name: format!("{folder}/{split}"), class_names, files, caption_seed })
    }

    /// The file of a sample.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn file(&self, index: usize) -> Result<&Path> {
        check_index(&self.name, index, self.files.len())?;
        Ok(&self.files[index].0)
    }
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
        let label = self.label(index)?;
        let file = self.file(index)?;
        let bytes = std::fs::read(file).map_err(|error| DataError::io(file, error))?;
        let image = decode(&bytes, file, 0)?;
        let caption = captions::varied(&self.class_names[label as usize], self.caption_seed, epoch, index);
        Ok(CaptionedImage::new(image, label, caption))
    }
}

impl Labelled for ImageFolder {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(&self.name, index, self.files.len())?;
        Ok(self.files[index].1)
    }
}

/// The names of the folders in a folder, sorted, without hidden ones.
fn class_folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for path in list(root)? {
        if !path.is_dir() {
            continue;
        }
        match path.file_name().and_then(|name| name.to_str()) {
            Some(name) if name.starts_with('.') => {}
            Some(name) => names.push(name.to_string()),
            None => {
                let reason = "the folder's name is not UTF-8".to_string();
                return Err(DataError::ClassNames { path, reason });
            }
        }
    }
    Ok(names)
}

/// The image files of a folder, sorted.
fn images_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = list(folder)?;
    files.retain(|path| {
        let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
        ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && path.is_file()
    });
    Ok(files)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| DataError::io(folder, error);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let mut paths =
        entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    // The operating system lists in any order.
    paths.sort();
    Ok(paths)
}
