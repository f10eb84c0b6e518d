//! Resizing with a named filter.

use crate::choices::choices;
use crate::error::{DataError, Result};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use image::RgbImage;

/// The resampling filter. All but [`Nearest`](Filter::Nearest) widen their kernel when they reduce an image, as
/// Pillow's filters do, so that fine patterns do not alias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Filter {
    /// The nearest pixel.
    Nearest,
    /// Linear in both directions.
    #[default]
    Bilinear,
    /// Catmull and Rom's cubic (a = −0.5), Pillow's `BICUBIC`.
    Bicubic,
    /// A sinc windowed to three lobes.
    Lanczos3,
}

choices! {
    Filter: "transform.resize.filter" {
        Nearest = "nearest", Bilinear = "bilinear", Bicubic = "bicubic", Lanczos3 = "lanczos3",
    }
}

/// The treatment of the aspect ratio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ResizeMode {
    /// Makes a square, and stretches images that are not square.
    #[default]
    Square,
    /// Resizes the shorter side and keeps the aspect ratio; a crop then makes a square.
    ShorterSide,
}

choices! { ResizeMode: "transform.resize.mode" { Square = "square", ShorterSide = "shorter-side" } }

/// A resize step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Resize {
    /// The side in pixels, which may be larger than the image.
    pub size: u32,
    /// The resampling filter.
    pub filter: Filter,
    /// The treatment of the aspect ratio.
    pub mode: ResizeMode,
}

impl Resize {
    /// Makes a resize to a square.
    #[must_use]
    pub fn square(size: u32, filter: Filter) -> Self {
        Self { size, filter, mode: ResizeMode::Square }
    }

    /// Returns the width and height of the result.
    #[must_use]
    pub fn output_size(&self, width: u32, height: u32) -> (u32, u32) {
        let (short, long) = (u64::from(width.min(height)), u64::from(width.max(height)));
        if self.mode == ResizeMode::Square || short == long || short == 0 {
            return (self.size, self.size);
        }
        // Rounded down, as torchvision's `Resize` does.
        let scaled = u32::try_from(u64::from(self.size) * long / short).unwrap_or(u32::MAX);
        if width < height { (self.size, scaled) } else { (scaled, self.size) }
    }

    /// Resizes an image; one of the right size is returned unchanged.
    ///
    /// # Errors
    /// If the image has no pixels.
    pub fn apply(&self, image: RgbImage) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        let (new_width, new_height) = self.output_size(width, height);
        if (width, height) == (new_width, new_height) {
            return Ok(image);
        }
        let failed = |reason: String| DataError::ImageSize { width, height, reason };
        if width == 0 || height == 0 {
            return Err(failed("an image without pixels cannot be resized".to_string()));
        }
        let algorithm = match self.filter {
            Filter::Nearest => ResizeAlg::Nearest,
            Filter::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Filter::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Filter::Lanczos3 => ResizeAlg::Convolution(FilterType::Lanczos3),
        };
        // With the pixel type known to the compiler, only its code is instantiated.
        let from = TypedImageRef::<U8x3>::from_buffer(width, height, image.as_raw());
        let from = from.map_err(|error| failed(error.to_string()))?;
        let mut pixels = vec![0; 3 * new_width as usize * new_height as usize];
        let to = TypedImage::<U8x3>::from_buffer(new_width, new_height, &mut pixels);
        Resizer::new()
            .resize_typed(
                &from,
                &mut to.map_err(|error| failed(error.to_string()))?,
                &ResizeOptions::new().resize_alg(algorithm),
            )
            .map_err(|error| failed(error.to_string()))?;
        RgbImage::from_raw(new_width, new_height, pixels)
            .ok_or_else(|| failed(format!("{new_width}x{new_height} pixels were not made")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    const FILTERS: [&str; 4] = ["nearest", "bilinear", "bicubic", "lanczos3"];

    #[test]
    fn one_colour_stays_that_colour_at_every_size() {
        let image = RgbImage::from_pixel(20, 10, Rgb([10, 200, 30]));
        for filter in FILTERS {
            for size in [1, 7, 32, 512, 1024] {
                let got = Resize::square(size, filter.parse().unwrap()).apply(image.clone()).unwrap();
                assert_eq!(got.dimensions(), (size, size));
                assert!(got.pixels().all(|p| p.0 == [10, 200, 30]), "{filter} {size}");
            }
        }
        assert!("cubic".parse::<Filter>().is_err());
    }

    #[test]
    fn halving_mixes_with_the_filters_known_weights() {
        // Four columns to two. The bilinear kernel has half-width 2 here: column 0 takes pixels at distances 0.25,
        // 0.25, 0.75 of that width, with weights 0.75, 0.75, 0.25 over 1.75.
        let image = RgbImage::from_fn(4, 4, |x, _| Rgb([if x < 2 { 0 } else { 175 }; 3]));
        let half = |filter| Resize::square(2, filter).apply(image.clone()).unwrap().get_pixel(0, 0).0[0];
        assert_eq!(half(Filter::Bilinear), 25);
        assert_eq!(half(Filter::Nearest), 0);
        // Doubling only repeats pixels.
        let doubled = Resize::square(8, Filter::Nearest).apply(image.clone()).unwrap();
        assert!(doubled.enumerate_pixels().all(|(x, y, p)| p == image.get_pixel(x / 2, y / 2)));
    }

    #[test]
    fn the_shorter_side_keeps_proportions() {
        let resize = Resize { size: 224, filter: Filter::Bilinear, mode: ResizeMode::ShorterSide };
        assert_eq!(resize.output_size(500, 375), (298, 224));
        assert_eq!(resize.output_size(375, 500), (224, 298));
        assert_eq!(resize.apply(RgbImage::new(30, 20)).unwrap().dimensions(), (336, 224));
    }

    #[test]
    fn an_image_without_pixels_is_an_error() {
        assert!(Resize::square(4, Filter::Bilinear).apply(RgbImage::new(0, 3)).is_err());
    }
}
