//! Images with their classes and captions.

use super::{Collate, Samples};
use crate::attribute::Attribute;
use crate::batch::{Batch, ImageBytes, ImageRecipe};
use crate::cached_images::CachedImages;
use crate::captioned_image::CaptionedImage;
use crate::error::{DataError, Result};
use crate::transform::{Placement, Transform};
use image::RgbImage;
use std::sync::Arc;

/// Transforms images and puts them into one array.
///
/// The batch has `images`, f32 [N, 3, H, W] as the transform's normalisation leaves them; `labels`, u32 `[N]`; the texts
/// `captions`; and for every attribute that it was told of an array of the attribute's name, u32 `[N]`. Made
/// [into bytes](Collate::as_bytes) it gives `images` as [`ImageBytes`] instead, of which the same numbers can be made.
#[derive(Debug, Clone)]
pub struct ImageCollation {
    transform: Transform,
    attributes: Vec<String>,
    form: Form,
}

/// As what images are given.
#[derive(Debug, Clone)]
enum Form {
    /// Numbers.
    Numbers,
    /// Bytes of each sample; or, where somebody keeps those that he gets, of those that he has not.
    Bytes(Option<Arc<CachedImages>>),
}

/// The images of a batch as far as they are gathered.
enum Gathered<'a> {
    Numbers(Vec<f32>),
    Bytes(Bytes<'a>),
}

/// Images as bytes as far as they are gathered.
struct Bytes<'a> {
    held: Option<&'a CachedImages>,
    pixels: Vec<u8>,
    samples: Vec<(u32, Placement)>,
    /// The numbers of those whose pixels are there.
    fresh: Vec<u32>,
    source: (u32, u32),
}

impl Bytes<'_> {
    /// Adds an image, and returns the width and height of what becomes of it.
    fn add(
        &mut self,
        transform: &Transform,
        image: RgbImage,
        epoch: u64,
        index: usize,
    ) -> Result<(u32, u32)> {
        if let Some(held) = self.held {
            let number = u32::try_from(index).unwrap_or(u32::MAX);
            // A dataset that was asked for no pixels has given none.
            let (placement, size) = if image.width() == 0 && held.contains(index) {
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
            // Images may be of several sizes, or what is left of them is less to send.
            image = Placement { flipped: false, ..placement }.apply(image, size)?;
            placement = Placement { flipped: placement.flipped, ..Placement::default() };
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
    /// A collation that does this to each image.
    #[must_use]
    pub fn new(transform: Transform) -> Self {
        Self { transform, attributes: Vec::new(), form: Form::Numbers }
    }

    /// The collation with an array for each of these attributes, which are those of the dataset
    /// ([`Labelled::attributes`](crate::Labelled::attributes)).
    #[must_use]
    pub fn with_attributes(mut self, attributes: &[Attribute]) -> Self {
        self.attributes = attributes.iter().map(|attribute| attribute.name.clone()).collect();
        self
    }

    /// What happens to each image.
    #[must_use]
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Nothing yet.
    fn begin(&self) -> Gathered<'_> {
        match &self.form {
            Form::Numbers => Gathered::Numbers(Vec::new()),
            Form::Bytes(held) => Gathered::Bytes(Bytes {
                held: held.as_deref(),
                pixels: Vec::new(),
                samples: Vec::new(),
                fresh: Vec::new(),
                source: self.transform.fixed_side().map(|side| (side, side)).unwrap_or_default(),
            }),
        }
    }

    /// All images with what is still to be done to them to make `size`, height and width, of each.
    fn bytes(&self, bytes: Bytes<'_>, size: [usize; 2]) -> Result<ImageBytes> {
        let Bytes { held, pixels, samples, fresh, source: (width, height) } = bytes;
        let (source, normalise) = ([height as usize, width as usize], &self.transform.config().normalise);
        let recipe = match held {
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
    /// If a sample cannot be read, an image is too small for the transform, images differ in size after it, or a sample has
    /// other attributes than those that the collation was told of.
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
                    let reason = format!("{} attributes where {} are known", values.len(), attributes.len());
                    return Err(DataError::sample(dataset, index, reason));
                }
                for (all, value) in attributes.iter_mut().zip(values) {
                    all.push(value);
                }
            }
            let found = match &mut images {
                Gathered::Numbers(numbers) => self.transform.append(image, epoch, index, numbers)?,
                Gathered::Bytes(bytes) => {
                    let (width, height) = bytes.add(&self.transform, image, epoch, index)?;
                    [3, height as usize, width as usize]
                }
            };
            let expected = *each.get_or_insert(found);
            if found != expected {
                return Err(DataError::MixedSizes { dataset: dataset.to_string(), index, expected, found });
            }
            if labels.is_empty() {
                // All images are as large as the first, so this is the last allocation.
                match &mut images {
                    Gathered::Numbers(numbers) => numbers.reserve_exact(numbers.len() * (number - 1)),
                    Gathered::Bytes(bytes) => bytes.pixels.reserve_exact(bytes.pixels.len() * (number - 1)),
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
            Gathered::Numbers(numbers) => {
                Batch::new(number).with("images", [number, channels, height, width], numbers)?
            }
            Gathered::Bytes(bytes) => {
                Batch::new(number).with_images("images", self.bytes(bytes, [height, width])?)?
            }
        };
        let batch = batch.with("labels", [number], labels)?.with_texts("captions", captions)?;
        let mut named = self.attributes.iter().zip(attributes);
        named.try_fold(batch, |batch, (name, values)| batch.with(name, [number], values))
    }

    fn as_bytes(&self, held: Option<Arc<CachedImages>>) -> Option<Self> {
        Some(Self { form: Form::Bytes(held), ..self.clone() })
    }

    fn fixed_images(&self) -> Option<[usize; 2]> {
        self.transform.fixed_side().map(|side| [side as usize; 2])
    }

    fn is_cached(&self, index: usize) -> bool {
        matches!(&self.form, Form::Bytes(Some(held)) if held.contains(index))
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
            // The third has one attribute too many.
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
    fn images_of_two_sizes_are_refused_and_no_image_is_none() {
        let error = collate(&[(2, 1), (1, 2)]).unwrap_err();
        assert!(matches!(
            error,
            DataError::MixedSizes { index: 1, expected: [3, 1, 2], found: [3, 2, 1], .. }
        ));
        assert!(collate(&[]).unwrap().is_empty());
        let error = collate(&[(2, 1), (2, 1), (2, 1)]).unwrap_err().to_string();
        assert!(error.contains("sample 2 of pictures: 3 attributes where 2 are known"), "{error}");
    }
}
