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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset as _;

    #[test]
    fn folders_are_walked_in_order_and_files_taken_as_given() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for name in ["b/2.png", "b/10.jpg", "a.webp", "c.PNG", "b/.hidden.png", ".git/x.png", "b/notes.txt"] {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let given = root.join("no image");
        let listed = ImageFiles::list([given.as_path(), root]).unwrap();
        let expected = ["no image", "a.webp", "b/10.jpg", "b/2.png", "c.PNG"].map(|name| root.join(name));
        assert_eq!(listed, expected);
        std::fs::create_dir(root.join("d")).unwrap();
        let error = ImageFiles::list([root.join("d").as_path()]).unwrap_err().to_string();
        assert!(error.contains("looked for images (.png"), "{error}");
        let files = ImageFiles::new(listed);
        let error = files.get(1, 0).unwrap_err().to_string();
        assert!(error.contains("a.webp") && error.contains("the file is empty"), "{error}");
        assert!(files.get(0, 0).is_err() && files.get(5, 0).is_err());
    }
}
