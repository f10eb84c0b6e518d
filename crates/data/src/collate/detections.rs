//! Batches of images of different sizes with boxes and masks of their objects.

use super::{Collate, PadTo, Samples};
use crate::batch::Batch;
use crate::error::Result;
use crate::transform::Normalise;
use image::{GrayImage, RgbImage};

/// One object in an image.
#[derive(Debug, Clone)]
pub struct ObjectAnnotation {
    /// The bounding box in pixels: left, top, right, bottom, where right and bottom are exclusive.
    pub bounds: [f32; 4],
    /// The class.
    pub label: u32,
    /// The pixels that the object covers: those that are not 0. It has the size of the image.
    pub mask: Option<GrayImage>,
}

/// An image with its objects, possibly none.
#[derive(Debug, Clone)]
pub struct DetectionImage {
    /// The image, 8 bits per channel.
    pub image: RgbImage,
    /// The objects.
    pub objects: Vec<ObjectAnnotation>,
}

/// The settings of a [`DetectionCollation`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DetectionConfig {
    /// The normalisation of the pixels.
    pub normalise: Normalise,
    /// The padded height of images.
    pub height: PadTo,
    /// The padded width of images.
    pub width: PadTo,
    /// The padded number of objects.
    pub objects: PadTo,
    /// Adds the masks of the objects; then every object must have one.
    pub masks: bool,
}

impl Default for DetectionConfig {
    /// ImageNet's normalisation, the size of the largest image in the batch, no masks.
    fn default() -> Self {
        Self {
            normalise: Normalise::IMAGENET,
            height: PadTo::Longest,
            width: PadTo::Longest,
            objects: PadTo::Longest,
            masks: false,
        }
    }
}

/// A collation that pads images to one size and lists of objects to one length.
///
/// The batch has these arrays, where M is at least 1:
/// - `images`, f32 [N, 3, H, W]: each at the top left, padded with zeros after the normalisation;
/// - `image_sizes`, u32 [N, 2]: heights and widths without padding;
/// - `boxes`, f32 [N, M, 4]: left, top, right, bottom in pixels, 0 in the padding;
/// - `labels`, u32 [N, M]: classes, 0 in the padding;
/// - `valid`, u8 [N, M]: 1 for an object and 0 for padding;
/// - `masks`, u8 [N, M, H, W]: 1 on the pixels of the object, only with [`DetectionConfig::masks`].
#[derive(Debug, Clone)]
pub struct DetectionCollation {
    config: DetectionConfig,
}

impl DetectionCollation {
    /// Checks the settings.
    ///
    /// # Errors
    /// If a length is 0, or a standard deviation is not positive.
    pub fn new(config: DetectionConfig) -> Result<Self> {
        config.normalise.validate()?;
        config.height.validate("detections.height")?;
        config.width.validate("detections.width")?;
        config.objects.validate("detections.objects")?;
        Ok(Self { config })
    }

    /// Returns the problem of a sample, if any.
    fn problem(&self, sample: &DetectionImage) -> Option<String> {
        let (width, height) = sample.image.dimensions();
        if width == 0 || height == 0 {
            return Some(format!("an image of {width}x{height} pixels"));
        }
        let config = &self.config;
        let sizes = [
            ("height", config.height, height as usize),
            ("width", config.width, width as usize),
            ("objects", config.objects, sample.objects.len()),
        ];
        if let Some((what, pad_to, size)) = sizes.iter().find(|(_, to, size)| to.length(*size).is_none()) {
            return Some(format!("{what} of {size} is more than {pad_to:?}"));
        }
        for (number, ObjectAnnotation { bounds, mask, .. }) in sample.objects.iter().enumerate() {
            let [left, top, right, bottom] = *bounds;
            // Written so that NaN is refused.
            let good = (0.0..=right).contains(&left)
                && (0.0..=bottom).contains(&top)
                && right <= width as f32
                && bottom <= height as f32;
            if !good {
                return Some(format!(
                    "box {number}, {bounds:?}, is not a box within {width}x{height} pixels"
                ));
            }
            match mask {
                None if config.masks => return Some(format!("object {number} has no mask")),
                Some(mask) if mask.dimensions() != (width, height) => {
                    let (own, other) = mask.dimensions();
                    return Some(format!(
                        "the mask of object {number} is {own}x{other}, the image {width}x{height}"
                    ));
                }
                _ => {}
            }
        }
        None
    }
}

impl Collate<DetectionImage> for DetectionCollation {
    /// # Errors
    /// If a sample cannot be read, exceeds a fixed size, or has an invalid box, a box outside the image, or no mask.
    fn collate(&self, samples: &mut Samples<'_, DetectionImage>) -> Result<Batch> {
        let config = &self.config;
        let number = samples.len();
        let mut all = Vec::with_capacity(number);
        while let Some(sample) = samples.next() {
            let (index, sample) = sample?;
            if let Some(problem) = self.problem(&sample) {
                return Err(samples.error(index, problem));
            }
            all.push(sample);
        }
        let largest = |pad_to: PadTo, size: &dyn Fn(&DetectionImage) -> usize| {
            let longest = all.iter().map(size).max().unwrap_or(0);
            // Each sample fits, so the largest does.
            pad_to.length(longest).unwrap_or(longest)
        };
        let height = largest(config.height, &|sample| sample.image.height() as usize);
        let width = largest(config.width, &|sample| sample.image.width() as usize);
        let room = largest(config.objects, &|sample| sample.objects.len());
        let mut images = vec![0.0_f32; number * 3 * height * width];
        let mut masks = vec![0_u8; if config.masks { number * room * height * width } else { 0 }];
        let mut boxes = vec![0.0_f32; number * room * 4];
        let mut labels = vec![0_u32; number * room];
        let mut valid = vec![0_u8; number * room];
        let mut image_sizes = Vec::with_capacity(2 * number);
        let mut pixels = Vec::new();
        for (row, sample) in all.iter().enumerate() {
            let size = (sample.image.height() as usize, sample.image.width() as usize);
            image_sizes.extend([size.0 as u32, size.1 as u32]);
            pixels.clear();
            config.normalise.append(&sample.image, &mut pixels);
            for (channel, plane) in pixels.chunks_exact(size.0 * size.1).enumerate() {
                place(plane, size, &mut images, row * 3 + channel, (height, width));
            }
            for (object, ObjectAnnotation { bounds, label, mask }) in sample.objects.iter().enumerate() {
                let at = row * room + object;
                boxes[4 * at..4 * at + 4].copy_from_slice(bounds);
                labels[at] = *label;
                valid[at] = 1;
                if let (true, Some(mask)) = (config.masks, mask) {
                    let covered: Vec<u8> = mask.as_raw().iter().map(|pixel| u8::from(*pixel != 0)).collect();
                    place(&covered, size, &mut masks, at, (height, width));
                }
            }
        }
        let batch = Batch::new(number)
            .with("images", [number, 3, height, width], images)?
            .with("image_sizes", [number, 2], image_sizes)?
            .with("boxes", [number, room, 4], boxes)?
            .with("labels", [number, room], labels)?
            .with("valid", [number, room], valid)?;
        if config.masks { batch.with("masks", [number, room, height, width], masks) } else { Ok(batch) }
    }
}

/// Copies a plane of `size` (height, width) to the top left of plane `number` of size `to` in `planes`.
fn place<T: Copy>(plane: &[T], size: (usize, usize), planes: &mut [T], number: usize, to: (usize, usize)) {
    let planes = &mut planes[number * to.0 * to.1..(number + 1) * to.0 * to.1];
    for (own, padded) in plane.chunks_exact(size.1).zip(planes.chunks_exact_mut(to.1)) {
        padded[..size.1].copy_from_slice(own);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::DataError;
    use image::{Luma, Rgb};

    fn object(bounds: [f32; 4], label: u32, mask: Option<GrayImage>) -> ObjectAnnotation {
        ObjectAnnotation { bounds, label, mask }
    }

    fn image(width: u32, height: u32, objects: Vec<ObjectAnnotation>) -> DetectionImage {
        DetectionImage { image: RgbImage::from_pixel(width, height, Rgb([255, 51, 0])), objects }
    }

    fn collate(config: DetectionConfig, samples: &[DetectionImage]) -> Result<Batch> {
        let indices: Vec<usize> = (0..samples.len()).collect();
        let get = |index: usize| Ok(samples[index].clone());
        let config = DetectionConfig { normalise: Normalise::UNIT, ..config };
        DetectionCollation::new(config)?.collate(&mut Samples::new("streets", &indices, 0, &get))
    }

    #[test]
    fn images_and_objects_are_padded() {
        let mask = GrayImage::from_fn(2, 1, |x, _| Luma([x as u8 * 200]));
        let of_all = Some(GrayImage::from_pixel(2, 1, Luma([1])));
        let samples = [
            image(
                2,
                1,
                vec![object([0.0, 0.0, 2.0, 1.0], 7, of_all), object([1.0, 0.0, 2.0, 1.0], 8, Some(mask))],
            ),
            image(1, 2, Vec::new()),
        ];
        let batch = collate(DetectionConfig { masks: true, ..Default::default() }, &samples).unwrap();
        assert_eq!(batch.array("images").unwrap().shape(), [2, 3, 2, 2]);
        let images = batch.values::<f32>("images").unwrap();
        assert_eq!(images[..12], [1.0, 1.0, 0.0, 0.0, 0.2, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(images[12..], [1.0, 0.0, 1.0, 0.0, 0.2, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(batch.values::<u32>("image_sizes").unwrap(), [1, 2, 2, 1]);
        assert_eq!(batch.array("boxes").unwrap().shape(), [2, 2, 4]);
        let boxes = batch.values::<f32>("boxes").unwrap();
        assert_eq!(boxes[..8], [0.0, 0.0, 2.0, 1.0, 1.0, 0.0, 2.0, 1.0]);
        assert_eq!(boxes[8..], [0.0; 8]);
        assert_eq!(batch.values::<u32>("labels").unwrap(), [7, 8, 0, 0]);
        assert_eq!(batch.values::<u8>("valid").unwrap(), [1, 1, 0, 0]);
        assert_eq!(batch.array("masks").unwrap().shape(), [2, 2, 2, 2]);
        let masks = batch.values::<u8>("masks").unwrap();
        assert_eq!(masks[..8], [1, 1, 0, 0, 0, 1, 0, 0]);
        assert_eq!(masks[8..], [0; 8]);
    }

    #[test]
    fn a_batch_without_any_object_has_room_for_one() {
        let batch = collate(DetectionConfig::default(), &[image(3, 2, Vec::new())]).unwrap();
        assert_eq!(batch.array("boxes").unwrap().shape(), [1, 1, 4]);
        assert_eq!(batch.values::<u8>("valid").unwrap(), [0]);
        assert!(batch.array("masks").is_err());
    }

    #[test]
    fn sizes_can_be_multiples_or_fixed() {
        let config = DetectionConfig {
            height: PadTo::Multiple(4),
            width: PadTo::Fixed(5),
            objects: PadTo::Fixed(3),
            ..Default::default()
        };
        let batch = collate(config, &[image(5, 5, Vec::new())]).unwrap();
        assert_eq!(batch.array("images").unwrap().shape(), [1, 3, 8, 5]);
        assert_eq!(batch.array("labels").unwrap().shape(), [1, 3]);
        let wide = collate(config, &[image(5, 5, Vec::new()), image(6, 1, Vec::new())]).unwrap_err();
        assert!(matches!(wide, DataError::Sample { index: 1, .. }), "{wide}");
    }

    #[test]
    fn invalid_boxes_and_missing_masks_are_named() {
        let masks = DetectionConfig { masks: true, ..Default::default() };
        let small = Some(GrayImage::new(1, 1));
        for (config, bad) in [
            (DetectionConfig::default(), object([0.0, 0.0, 3.0, 1.0], 0, None)),
            (DetectionConfig::default(), object([1.0, 0.0, 0.0, 1.0], 0, None)),
            (DetectionConfig::default(), object([0.0, f32::NAN, 1.0, 1.0], 0, None)),
            (DetectionConfig::default(), object([0.0, 0.0, 1.0, 1.0], 0, small)),
            (masks, object([0.0, 0.0, 1.0, 1.0], 0, None)),
        ] {
            let samples = [image(2, 2, Vec::new()), image(2, 2, vec![bad])];
            let error = collate(config, &samples).unwrap_err();
            assert!(matches!(&error, DataError::Sample { index: 1, .. }), "{error}");
        }
        assert!(
            DetectionCollation::new(DetectionConfig { width: PadTo::Fixed(0), ..Default::default() })
                .is_err()
        );
    }
}
