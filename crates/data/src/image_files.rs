//! Image files without classes: those of a user who asks a trained model about them.

use crate::captioned_image::CaptionedImage;
use crate::decode::decode_file;
use crate::error::{DataError, Result};
use crate::file_list::ENDINGS;
use crate::folder_listing::images_below;
use crate::image_catalog::{Header, ImageCatalog};
use image::RgbImage;
use std::path::{Path, PathBuf};

/// Image files in a given order. They have no classes, captions or attributes.
#[derive(Debug, Clone)]
pub struct ImageFiles {
    header: Header,
    files: Vec<PathBuf>,
}

impl ImageFiles {
    /// Makes a dataset of files, which are read by [`Dataset::get`](crate::Dataset::get).
    #[must_use]
    pub fn new(files: Vec<PathBuf>) -> Self {
        Self { header: Header { name: "files".to_owned(), ..Header::default() }, files }
    }

    /// Lists the files that `paths` name: a file itself, and the images of a folder and of the folders below it, sorted.
    /// Hidden files and folders, links to folders, and files with other endings than those of images are left out.
    ///
    /// # Errors
    /// If a folder cannot be listed or has no images.
    pub fn list<'p>(paths: impl IntoIterator<Item = &'p Path>) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for path in paths {
            if !path.is_dir() {
                files.push(path.to_path_buf());
                continue;
            }
            let found = images_below(path)?;
            if found.is_empty() {
                let looked_for = format!("images (.{})", ENDINGS.join(", ."));
                return Err(DataError::Unrecognised { path: path.to_path_buf(), looked_for });
            }
            files.extend(found);
        }
        Ok(files)
    }
}

impl ImageCatalog for ImageFiles {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.files.len()
    }

    fn label_of(&self, _: usize) -> u32 {
        0
    }

    fn path_of(&self, index: usize) -> PathBuf {
        self.files[index].clone()
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        decode_file(&self.files[index])
    }

    fn describe(&self, _: usize, _: u64) -> CaptionedImage {
        CaptionedImage::new(RgbImage::default(), 0, String::new())
    }
}
