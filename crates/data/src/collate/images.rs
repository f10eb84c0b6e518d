//! Batches of captioned images.

use super::{Collate, Samples};
use crate::attribute::Attribute;
use crate::batch::{Batch, ImageBytes, ImageRecipe};
use crate::cached_images::CachedImages;
use crate::captioned_image::CaptionedImage;
use crate::error::{DataError, Result};
use crate::transform::{Placement, Transform};
use image::RgbImage;
use std::sync::Arc;

/// A collation that transforms images and stacks them.
///
/// The batch has `images`, f32 [N, 3, H, W], normalised; `labels`, u32 `[N]`; the texts `captions`; and an array of
/// each attribute's name, u32 `[N]`. [As bytes](Collate::as_bytes) it has `images` as [`ImageBytes`] instead, from
/// which the same numbers can be computed.
#[derive(Debug, Clone)]
pub struct ImageCollation {
    transform: Transform,
    attributes: Vec<String>,
    form: Form,
}

/// The form of the images in a batch.
#[derive(Debug, Clone)]
enum Form {
    /// Normalised numbers.
    Numbers,
    /// Bytes of each sample, or only of the images that a consumer has not cached.
    Bytes(Option<Arc<CachedImages>>),
}

/// The images of a batch that is being assembled.
enum BatchImages<'a> {
    Numbers(Vec<f32>),
    Bytes(Bytes<'a>),
}

/// Images as bytes of a batch that is being assembled.
struct Bytes<'a> {
    cached: Option<&'a CachedImages>,
    pixels: Vec<u8>,
    samples: Vec<(u32, Placement)>,
    /// The numbers of the images whose pixels are included.
    fresh: Vec<u32>,
    source: (u32, u32),
}

impl Bytes<'_> {
    /// Adds an image. Returns the width and height of the result.
    fn add(
        &mut self,
        transform: &Transform,
        image: RgbImage,
        epoch: u64,
        index: usize,
    ) -> Result<(u32, u32)> {
        if let Some(cached) = self.cached {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            // An image of width 0 comes from [`Dataset::without_pixels`](crate::Dataset::without_pixels).
            let (placement, size) = if image.width() == 0 && cached.contains(index) {
                transform.placement(epoch, index)?
            } else {
                let (image, placement, size) = transform.placed(image, epoch, index)?;
                self.take(&image);
                self.fresh.push(number);
                (placement, size)
            };
            self.samples.push((number, placement));
            return Ok(size);
        }
        let (mut image, mut placement, size) = transform.placed(image, epoch, index)?;
        let larger = image.width() > size.0 || image.height() > size.1;
        if transform.source_side().is_none() || larger {
            // Crop now if images may have several sizes, or the crop is smaller to send.
            image = Placement { flipped: false, ..placement }.apply(image, size)?;
            placement = Placement { left: 0, top: 0, ..placement };
        }
        self.take(&image);
        self.samples.push((0, placement));
        Ok(size)
    }

    fn take(&mut self, image: &RgbImage) {
        self.source = image.dimensions();
        self.pixels.extend_from_slice(image.as_raw());
    }
}

impl ImageCollation {
    /// Makes a collation with this transform.
    #[must_use]
    pub fn new(transform: Transform) -> Self {
        Self { transform, attributes: Vec::new(), form: Form::Numbers }
    }

    /// Adds an array for each of the dataset's [attributes](crate::LabelledDataset::attributes).
    #[must_use]
    pub fn with_attributes(mut self, attributes: &[Attribute]) -> Self {
        self.attributes = attributes.iter().map(|attribute| attribute.name.clone()).collect();
        self
    }

    /// Returns the transform.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Starts an empty batch.
    fn begin(&self) -> BatchImages<'_> {
        match &self.form {
            Form::Numbers => BatchImages::Numbers(Vec::new()),
            Form::Bytes(cached) => BatchImages::Bytes(Bytes {
                cached: cached.as_deref(),
                pixels: Vec::new(),
                samples: Vec::new(),
                fresh: Vec::new(),
                source: self.transform.fixed_side().map(|side| (side, side)).unwrap_or_default(),
            }),
        }
    }

    /// Combines the images with the remaining steps that make `size`, height and width, of each.
    fn bytes(&self, bytes: Bytes<'_>, size: [usize; 2]) -> Result<ImageBytes> {
        let Bytes { cached, pixels, samples, fresh, source: (width, height) } = bytes;
        let (source, normalise) = ([height as usize, width as usize], &self.transform.config().normalise);
        let recipe = match cached {
            Some(_) => ImageRecipe::of_set(source, size, normalise, samples, fresh),
            None => {
                let placements = samples.into_iter().map(|(_, placement)| placement);
                ImageRecipe::of_each(source, size, normalise, placements.collect())
            }
        };
        ImageBytes::new(recipe, pixels)
    }
}

impl Collate<CaptionedImage> for ImageCollation {
    /// # Errors
    /// If a sample cannot be read, an image is too small for the transform, sizes differ after it, or a sample has an
    /// unexpected number of attributes.
    fn collate(&self, samples: &mut Samples<'_, CaptionedImage>) -> Result<Batch> {
        let (number, epoch, dataset) = (samples.len(), samples.epoch(), samples.dataset());
        let mut images = self.begin();
        let mut labels = Vec::with_capacity(number);
        let mut captions = Vec::with_capacity(number);
        let mut attributes = vec![Vec::with_capacity(number); self.attributes.len()];
        let mut each: Option<[usize; 3]> = None;
        for sample in samples {
            let (index, CaptionedImage { image, label, caption, attributes: values }) = sample?;
            if !self.attributes.is_empty() {
                if values.len() != attributes.len() {
                    let reason = format!("{} attributes; expected {}", values.len(), attributes.len());
                    return Err(DataError::sample(dataset, index, reason));
                }
                for (all, value) in attributes.iter_mut().zip(values) {
                    all.push(value);
                }
            }
            let found = match &mut images {
                BatchImages::Numbers(numbers) => self.transform.append(image, epoch, index, numbers)?,
                BatchImages::Bytes(bytes) => {
                    let (width, height) = bytes.add(&self.transform, image, epoch, index)?;
                    [3, height as usize, width as usize]
                }
            };
            let expected = *each.get_or_insert(found);
            if found != expected {
                return Err(DataError::MixedSizes { dataset: dataset.to_string(), index, expected, found });
            }
            if labels.is_empty() {
                // All images have the size of the first, so this is the last allocation.
                match &mut images {
                    BatchImages::Numbers(numbers) => numbers.reserve_exact(numbers.len() * (number - 1)),
                    BatchImages::Bytes(bytes) => {
                        bytes.pixels.reserve_exact(bytes.pixels.len() * (number - 1));
                    }
                }
            }
            labels.push(label);
            captions.push(caption);
        }
        let [channels, height, width] = each.unwrap_or_else(|| {
            let side = self.transform.output_side().unwrap_or(0) as usize;
            [3, side, side]
        });
        let batch = match images {
            BatchImages::Numbers(numbers) => {
                Batch::new(number).with("images", [number, channels, height, width], numbers)?
            }
            BatchImages::Bytes(bytes) => {
                Batch::new(number).with_images("images", self.bytes(bytes, [height, width])?)?
            }
        };
        let batch = batch.with("labels", [number], labels)?.with_texts("captions", captions)?;
        let mut named = self.attributes.iter().zip(attributes);
        named.try_fold(batch, |batch, (name, values)| batch.with(name, [number], values))
    }

    fn as_bytes(&self, cached: Option<Arc<CachedImages>>) -> Option<Self> {
        Some(Self { form: Form::Bytes(cached), ..self.clone() })
    }

    fn fixed_images(&self) -> Option<[usize; 2]> {
        self.transform.fixed_side().map(|side| [side as usize; 2])
    }

    fn is_cached(&self, index: usize) -> bool {
        matches!(&self.form, Form::Bytes(Some(cached)) if cached.contains(index))
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
            let picture = CaptionedImage::new(image, index as u32 + 5, format!("picture {index}"));
            // The third has an extra attribute.
            Ok(CaptionedImage { attributes: vec![index as u32; 2 + index / 2], ..picture })
        };
        let indices: Vec<usize> = (0..sizes.len()).collect();
        let known = ["colour", "place"].map(|name| Attribute::new(name, Vec::new()));
        let collation = ImageCollation::new(Transform::new(config)?).with_attributes(&known);
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
        assert_eq!(batch.values::<u32>("place").unwrap(), [0, 1]);
    }

    #[test]
    fn images_of_two_sizes_are_refused_and_no_images_are_an_empty_batch() {
        let error = collate(&[(2, 1), (1, 2)]).unwrap_err();
        assert!(matches!(
            error,
            DataError::MixedSizes { index: 1, expected: [3, 1, 2], found: [3, 2, 1], .. }
        ));
        assert!(collate(&[]).unwrap().is_empty());
        let error = collate(&[(2, 1), (2, 1), (2, 1)]).unwrap_err().to_string();
        assert!(error.contains("sample 2 of pictures: 3 attributes; expected 2"), "{error}");
    }
}
