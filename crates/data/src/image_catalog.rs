//! Shared implementation of the image datasets whose pixels are the same in every epoch.
//!
//! A dataset implements [`ImageCatalog`], which returns an image and its description by index; [`Dataset`] and
//! [`LabelledDataset`] follow from it.

use crate::attribute::Attribute;
use crate::captioned_image::CaptionedImage;
use crate::captions;
use crate::dataset::{Dataset, LabelledDataset, check_index};
use crate::error::Result;
use image::RgbImage;
use std::path::{Path, PathBuf};

/// Properties of an image dataset as a whole.
#[derive(Debug, Clone, Default)]
pub(crate) struct Header {
    /// The name in messages.
    pub(crate) name: String,
    /// The classes in the order of their labels; empty without classes.
    pub(crate) class_names: Vec<String>,
    /// The attributes of every image; empty without attributes.
    pub(crate) attributes: Vec<Attribute>,
    /// The seed of the captions.
    pub(crate) caption_seed: u64,
    /// The file or folder that names the classes; empty if none does.
    pub(crate) classes_from: PathBuf,
    /// The tables and archives that the images come from.
    pub(crate) files: Vec<PathBuf>,
    /// Files that were passed over, for the user.
    pub(crate) notes: Vec<String>,
}

/// Images by index with labels and captions that are known without decoding.
///
/// Every `index` is below [`count`](Self::count).
pub(crate) trait ImageCatalog: Send + Sync {
    /// The properties of the whole dataset.
    fn header(&self) -> &Header;

    /// The number of images.
    fn count(&self) -> usize;

    /// The label of an image; 0 without classes.
    fn label_of(&self, index: usize) -> u32;

    /// Returns the file of an image, or its archive and its row or key there; by default the dataset and the index.
    fn path_of(&self, index: usize) -> PathBuf {
        Path::new(&self.header().name).join(index.to_string())
    }

    /// Reads or renders an image.
    fn pixels(&self, index: usize) -> Result<RgbImage>;

    /// Returns the label, caption and attributes of an image, without its pixels. By default the caption is made from
    /// the class name.
    fn describe(&self, index: usize, epoch: u64) -> CaptionedImage {
        let (header, label) = (self.header(), self.label_of(index));
        let class_name = &header.class_names[label as usize];
        let caption = captions::varied(class_name, header.caption_seed, epoch, index);
        CaptionedImage::new(RgbImage::default(), label, caption)
    }
}

impl<C: ImageCatalog> Dataset for C {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.header().name
    }

    fn len(&self) -> usize {
        self.count()
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let description = self.without_pixels(index, epoch)?;
        Ok(CaptionedImage { image: self.pixels(index)?, ..description })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        check_index(self.name(), index, self.count())?;
        Ok(self.describe(index, epoch))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }

    fn notes(&self) -> &[String] {
        &self.header().notes
    }

    fn sample_path(&self, index: usize) -> Result<PathBuf> {
        check_index(self.name(), index, self.count())?;
        Ok(self.path_of(index))
    }
}

impl<C: ImageCatalog> LabelledDataset for C {
    fn class_names(&self) -> &[String] {
        &self.header().class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        check_index(self.name(), index, self.count())?;
        Ok(self.label_of(index))
    }

    fn attributes(&self) -> &[Attribute] {
        &self.header().attributes
    }

    fn files(&self) -> &[PathBuf] {
        &self.header().files
    }

    fn classes_from(&self) -> Option<&Path> {
        Some(self.header().classes_from.as_path()).filter(|path| !path.as_os_str().is_empty())
    }
}
