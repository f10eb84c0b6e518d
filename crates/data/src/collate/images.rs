//! Images with their classes and captions.

use super::{Collate, Samples};
use crate::batch::Batch;
use crate::captioned_image::CaptionedImage;
use crate::error::{DataError, Result};
use crate::transform::Transform;

/// Transforms images and puts them into one array.
///
/// The batch has `images`, f32 [N, 3, H, W] as the transform's normalisation leaves them; `labels`, u32 `[N]`; and the
/// texts `captions`.
#[derive(Debug, Clone)]
pub struct ImageCollation {
    transform: Transform,
}

impl ImageCollation {
    /// A collation that does this to each image.
    #[must_use]
    pub fn new(transform: Transform) -> Self {
        Self { transform }
    }

    /// What happens to each image.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
    }
}

impl Collate<CaptionedImage> for ImageCollation {
    /// # Errors
    /// If a sample cannot be read, an image is too small for the transform, or images differ in size after it.
    fn collate(&self, samples: &mut Samples<'_, CaptionedImage>) -> Result<Batch> {
        let (number, epoch, dataset) = (samples.len(), samples.epoch(), samples.dataset());
        let mut images = Vec::new();
        let mut labels = Vec::with_capacity(number);
        let mut captions = Vec::with_capacity(number);
        let mut each: Option<[usize; 3]> = None;
        for sample in samples {
            let (index, CaptionedImage { image, label, caption }) = sample?;
            let found = self.transform.append(image, epoch, index, &mut images)?;
            let expected = *each.get_or_insert(found);
            if found != expected {
                return Err(DataError::MixedSizes { dataset: dataset.to_string(), index, expected, found });
            }
            if labels.is_empty() {
                // All images are as large as the first, so this is the last allocation.
                images.reserve_exact(images.len() * (number - 1));
            }
            labels.push(label);
            captions.push(caption);
        }
        let [channels, height, width] = each.unwrap_or_else(|| {
            let side = self.transform.output_side().unwrap_or(0) as usize;
            [3, side, side]
        });
        Batch::new(number)
            .with("images", [number, channels, height, width], images)?
            .with("labels", [number], labels)?
            .with_texts("captions", captions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::{Normalise, TransformConfig};
    use image::{Rgb, RgbImage};

    fn collate(sizes: &[(u32, u32)]) -> Result<Batch> {
        let config = TransformConfig { normalise: Normalise::UNIT, ..Default::default() };
        let get = |index: usize| {
            let (width, height) = sizes[index];
            let image = RgbImage::from_pixel(width, height, Rgb([255, 0, 51 * index as u8]));
            Ok(CaptionedImage { image, label: index as u32 + 5, caption: format!("picture {index}") })
        };
        let indices: Vec<usize> = (0..sizes.len()).collect();
        let collation = ImageCollation::new(Transform::new(config)?);
        collation.collate(&mut Samples::new("pictures", &indices, 0, &get))
    }

    #[test]
    fn images_become_one_array() {
        let batch = collate(&[(2, 1), (2, 1)]).unwrap();
        assert_eq!(batch.array("images").unwrap().shape(), [2, 3, 1, 2]);
        let expected = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.2, 0.2];
        assert_eq!(batch.values::<f32>("images").unwrap(), expected);
        assert_eq!(batch.values::<u32>("labels").unwrap(), [5, 6]);
        assert_eq!(batch.texts("captions").unwrap(), ["picture 0", "picture 1"]);
        assert_eq!(batch.weights(), [1.0, 1.0]);
    }

    #[test]
    fn images_of_two_sizes_are_refused_and_no_image_is_none() {
        let error = collate(&[(2, 1), (1, 2)]).unwrap_err();
        assert!(matches!(
            error,
            DataError::MixedSizes { index: 1, expected: [3, 1, 2], found: [3, 2, 1], .. }
        ));
        assert!(collate(&[]).unwrap().is_empty());
    }
}
