//! The sample of image datasets: an image, its class and a caption.

use crate::dataset::LabelledDataset;
use image::RgbImage;

/// A decoded image with its class and caption.
#[derive(Debug, Clone)]
pub struct CaptionedImage {
    /// The image, 8 bits per channel.
    pub image: RgbImage,
    /// The index of its class in [`LabelledDataset::class_names`].
    pub label: u32,
    /// A sentence that describes it. The epoch selects the wording.
    pub caption: String,
    /// The value of each of [`LabelledDataset::attributes`]; empty without attributes.
    pub attributes: Vec<u32>,
}

impl CaptionedImage {
    /// Makes a sample of a dataset without [attributes](LabelledDataset::attributes).
    #[must_use]
    pub fn new(image: RgbImage, label: u32, caption: String) -> Self {
        Self { image, label, caption, attributes: Vec::new() }
    }
}

/// A dataset of [`CaptionedImage`]s of any origin.
pub type ImageDataset = dyn LabelledDataset<Item = CaptionedImage>;
