//! The sample of the image datasets: a picture, its class, and a sentence about it.

use crate::dataset::Labelled;
use image::RgbImage;

/// One picture, decoded.
#[derive(Debug, Clone)]
pub struct CaptionedImage {
    /// The picture, 8 bits per channel.
    pub image: RgbImage,
    /// The index of its class in [`Labelled::class_names`].
    pub label: u32,
    /// A sentence that describes it. The epoch chooses among wordings.
    pub caption: String,
    /// For each of [`Labelled::attributes`] the number of its value; empty where the dataset has none.
    pub attributes: Vec<u32>,
}

impl CaptionedImage {
    /// A picture of a dataset without [attributes](Labelled::attributes).
    #[must_use]
    pub fn new(image: RgbImage, label: u32, caption: String) -> Self {
        Self { image, label, caption, attributes: Vec::new() }
    }
}

/// A dataset of [`CaptionedImage`]s of whatever origin.
pub type ImageDataset = dyn Labelled<Item = CaptionedImage>;
