//! Real images with their captions and classes, and the features of images.

use image::RgbImage;
use phalanx_data::transform::Normalise;
use phalanx_quality::{QualityError, Rows};
use phalanx_tensor::{ComputeDevice, Value};
use serde::{Deserialize, Serialize};

use super::judged_answer::JudgedSum;
use crate::engine::error::TrainError;
use phalanx_batches::Batch;

/// Samples of the test split.
pub(super) struct Pictures {
    batch: Batch,
    images: Vec<RgbImage>,
}

impl Pictures {
    /// Creates the samples of a batch, whose array `images` has this normalisation.
    pub(super) fn new(batch: Batch, normalise: &Normalise) -> Result<Self, TrainError> {
        let images = batch.tensor("images")?;
        let (count, _, height, width) = images.dims4()?;
        let values = images.flatten_all()?.to_vec1::<f32>()?;
        let (width, height) = (side(width)?, side(height)?);
        let images = values.chunks_exact((values.len() / count.max(1)).max(1));
        let images = images.map(|values| normalise.to_image(values, width, height));
        let images = images.collect::<Result<_, _>>()?;
        Ok(Self { batch, images })
    }

    /// The images, 8-bit as they would be saved.
    pub(super) fn images(&self) -> &[RgbImage] {
        &self.images
    }

    /// The normalised images, [N, 3, size, size], at a device.
    pub(super) fn values(&self, device: &ComputeDevice) -> Result<Value, TrainError> {
        Ok(Value::constant(device.put(self.batch.tensor("images")?)?))
    }

    /// The captions.
    pub(super) fn captions(&self) -> &[String] {
        self.batch.texts("captions").unwrap_or_default()
    }

    /// Returns the true classes in the array of this name.
    pub(super) fn answers(&self, name: &str) -> Result<Vec<u32>, TrainError> {
        Ok(self.batch.classes(name)?)
    }
}

/// Converts a generated image, planar in [-1, 1], to 8 bits.
pub(super) fn drawn(values: &[f32]) -> Result<RgbImage, TrainError> {
    let side = side((values.len() / 3).isqrt())?;
    Ok(Normalise::SYMMETRIC.to_image(values, side, side)?)
}

fn side(pixels: usize) -> Result<u32, TrainError> {
    u32::try_from(pixels).map_err(|_| TrainError::Setup(format!("a picture of {pixels} pixels a side")))
}

/// The features of some images by one evaluator, and sums over them. Ranks exchange them as JSON, without the features.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct ImageFeatures {
    /// The features of all images, one after the other.
    #[serde(skip)]
    pub(super) features: Vec<f32>,
    /// The number of features of an image; 0 without images.
    pub(super) dim: usize,
    /// The judgements of properties.
    pub(super) judged: Vec<JudgedSum>,
    /// The sum of the similarities of images and captions, if the evaluator reads captions.
    pub(super) fits: Option<f64>,
}

impl ImageFeatures {
    /// The features, a row for each image.
    pub(super) fn rows(&self) -> Result<Rows<'_>, QualityError> {
        Rows::new(&self.features, self.dim.max(1))
    }

    /// Adds the features of further images.
    pub(super) fn add(&mut self, more: Self) {
        if self.dim == 0 {
            *self = more;
        } else if more.dim > 0 {
            self.features.extend(more.features);
            self.judged.iter_mut().zip(&more.judged).for_each(|(own, more)| own.add(more));
            self.fits = self.fits.zip(more.fits).map(|(one, two)| one + two);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The judgement of an image of the second of two colours.
    fn sum(right: f64, found: usize) -> JudgedSum {
        let mut confusion = phalanx_run::ConfusionMatrix::new(2);
        confusion.add(1, found, 1.0);
        JudgedSum { name: "colour".to_owned(), right, images: 1, confusion: Some(confusion) }
    }

    #[test]
    fn features_add_up() {
        let one =
            ImageFeatures { features: vec![1.0, 2.0], dim: 2, judged: vec![sum(1.0, 1)], fits: Some(20.0) };
        let two = ImageFeatures { features: vec![3.0, 4.0], judged: vec![sum(0.0, 0)], ..one.clone() };
        let mut all = ImageFeatures::default();
        for more in [ImageFeatures::default(), one, ImageFeatures::default(), two] {
            all.add(more);
        }
        let confusion = all.judged[0].confusion.clone().expect("counted");
        assert_eq!(confusion.counts(), [0.0, 0.0, 1.0, 1.0]);
        let judged = vec![JudgedSum { images: 2, confusion: Some(confusion), ..sum(1.0, 1) }];
        assert_eq!(
            all,
            ImageFeatures { features: vec![1.0, 2.0, 3.0, 4.0], dim: 2, judged, fits: Some(40.0) }
        );
    }

    #[test]
    fn images_are_converted_to_8_bits() {
        let image = drawn(&[-1.0, 1.0, 0.0, 2.0, -1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0, 1.0]).expect("2 × 2");
        assert_eq!(image.dimensions(), (2, 2));
        assert_eq!(image.get_pixel(1, 0).0, [255, 0, 255]);
        assert!(drawn(&[0.0; 10]).is_err(), "10 numbers are no square of 3 channels");
    }
}
