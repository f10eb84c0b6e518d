//! The crop of a random area, resized to a square: the usual augmentation of ImageNet classifiers (Szegedy et al.
//! 2015).

use super::resize::{Filter, Resize};
use crate::error::{DataError, Result};
use image::RgbImage;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// The number of attempts before the centre of the image is used instead.
const ATTEMPTS: usize = 10;

/// A crop of random area, aspect ratio and position, resized to a square: torchvision's `RandomResizedCrop`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AreaCrop {
    /// The side of the square in pixels.
    pub size: u32,
    /// The smallest and largest fraction of the image's area, above 0 and at most 1; 0.08 and 1 for ImageNet.
    pub area: (f64, f64),
    /// The smallest and largest aspect ratio, uniform in its logarithm; usually 3/4 and 4/3.
    pub aspect: (f64, f64),
    /// The resampling filter.
    pub filter: Filter,
}

impl AreaCrop {
    /// Checks the settings.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { size, area, aspect, .. } = *self;
        let sound = size > 0 && area.0 > 0.0 && area.0 <= area.1 && area.1 <= 1.0;
        if sound && aspect.0 > 0.0 && aspect.0 <= aspect.1 && aspect.1.is_finite() {
            return Ok(());
        }
        let reason = format!("{size} pixels of an area in {area:?}, with an aspect in {aspect:?}");
        Err(DataError::config("transform.area_crop", reason))
    }

    /// Chooses an area of an image of this size: its left, top, width and height.
    fn random_area(&self, width: u32, height: u32, rng: &mut ChaCha8Rng) -> (u32, u32, u32, u32) {
        let (wide, high) = (f64::from(width), f64::from(height));
        let between =
            |rng: &mut ChaCha8Rng, (least, most): (f64, f64)| least + (most - least) * rng.random::<f64>();
        for _ in 0..ATTEMPTS {
            let area = wide * high * between(rng, self.area);
            let aspect = between(rng, (self.aspect.0.ln(), self.aspect.1.ln())).exp();
            let (w, h) = ((area * aspect).sqrt().round() as u32, (area / aspect).sqrt().round() as u32);
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let left = rng.random_range(0..=width - w);
                return (left, rng.random_range(0..=height - h), w, h);
            }
        }
        // The centre, as large as the aspect ratio allows.
        let (w, h) = if wide / high < self.aspect.0 {
            (width, ((wide / self.aspect.0).round() as u32).clamp(1, height))
        } else if wide / high > self.aspect.1 {
            (((high * self.aspect.1).round() as u32).clamp(1, width), height)
        } else {
            (width, height)
        };
        ((width - w) / 2, (height - h) / 2, w, h)
    }

    /// Crops and resizes an image.
    ///
    /// # Errors
    /// If the image has no pixels.
    pub(super) fn apply(&self, image: &RgbImage, rng: &mut ChaCha8Rng) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        if width == 0 || height == 0 {
            let reason = "an image without pixels has no area".to_owned();
            return Err(DataError::ImageSize { width, height, reason });
        }
        let (left, top, w, h) = self.random_area(width, height, rng);
        let part = image::imageops::crop_imm(image, left, top, w, h).to_image();
        Resize::square(self.size, self.filter).apply(part)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};
    use image::Rgb;

    const CROP: AreaCrop =
        AreaCrop { size: 16, area: (0.08, 1.0), aspect: (0.75, 4.0 / 3.0), filter: Filter::Bilinear };

    #[test]
    fn areas_and_aspect_ratios_are_within_range() {
        let (mut areas, mut number) = (0.0, 0);
        for index in 0..2000 {
            let (left, top, w, h) = CROP.random_area(200, 150, &mut rng_for(0, Purpose::Augment, 0, index));
            assert!(left + w <= 200 && top + h <= 150);
            let (area, aspect) = (f64::from(w * h) / 30_000.0, f64::from(w) / f64::from(h));
            // Sides are whole pixels.
            assert!((0.075..=1.0).contains(&area) && (0.73..1.37).contains(&aspect), "{w}x{h}");
            (areas, number) = (areas + area, number + 1);
        }
        // Large areas seldom fit, so the mean is below that of 0.08 to 1.
        assert!((0.4..0.54).contains(&(areas / f64::from(number))), "{}", areas / f64::from(number));
    }

    #[test]
    fn the_centre_is_used_if_nothing_fits() {
        let narrow = AreaCrop { area: (1.0, 1.0), ..CROP };
        let part = |width, height| narrow.random_area(width, height, &mut rng_for(0, Purpose::Augment, 0, 0));
        assert_eq!(part(400, 30), (180, 0, 40, 30));
        assert_eq!(part(30, 400), (0, 180, 30, 40));
    }

    #[test]
    fn an_area_becomes_a_square() {
        let image = RgbImage::from_fn(64, 48, |x, y| Rgb([x as u8, y as u8, 7]));
        let mut rng = rng_for(1, Purpose::Augment, 2, 3);
        let cut = CROP.apply(&image, &mut rng).unwrap();
        assert_eq!(cut.dimensions(), (16, 16));
        // The horizontal order is preserved.
        assert!(cut.get_pixel(15, 8).0[0] > cut.get_pixel(0, 8).0[0]);
        assert!(CROP.apply(&RgbImage::new(0, 4), &mut rng).is_err());
        for bad in [
            AreaCrop { size: 0, ..CROP },
            AreaCrop { area: (0.0, 1.0), ..CROP },
            AreaCrop { area: (0.5, 1.5), ..CROP },
            AreaCrop { aspect: (2.0, 1.0), ..CROP },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
