//! Cuts a square out of an image: from the middle, or from a random place after padding.

use crate::error::{DataError, Result};
use crate::rng::below;
use image::{GenericImage, GenericImageView, RgbImage};
use rand_chacha::ChaCha8Rng;

/// A square at a random place of the image with a black border added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomCrop {
    /// The square's side in pixels.
    pub size: u32,
    /// The border's width on each side in pixels; it is black before normalisation, as torchvision's is.
    pub padding: u32,
}

/// Cuts a square of `size` pixels from the middle.
///
/// # Errors
/// If the image is smaller than that.
pub fn center_crop(image: RgbImage, size: u32) -> Result<RgbImage> {
    let (width, height) = image.dimensions();
    if (width, height) == (size, size) {
        return Ok(image);
    }
    if width < size || height < size {
        return Err(too_small(&image, size, 0));
    }
    Ok(image.view((width - size) / 2, (height - size) / 2, size, size).to_image())
}

impl RandomCrop {
    /// Pads and cuts.
    ///
    /// # Errors
    /// If the image is smaller than the square even with its border.
    pub fn apply(&self, image: &RgbImage, rng: &mut ChaCha8Rng) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        // How many places there are along each side; the sums are wide enough for any image.
        let places =
            |side: u32| (i64::from(side) + 2 * i64::from(self.padding) - i64::from(self.size) + 1).max(0);
        let (across, down) = (places(width), places(height));
        if across == 0 || down == 0 {
            return Err(too_small(image, self.size, self.padding));
        }
        // The square's corner in the image's own coordinates; negative within the border.
        let left = below(rng, across as usize) as i64 - i64::from(self.padding);
        let top = below(rng, down as usize) as i64 - i64::from(self.padding);
        let mut out = RgbImage::new(self.size, self.size);
        let overlap = |corner: i64, side: u32| {
            let begin = corner.max(0);
            let end = (corner + i64::from(self.size)).min(i64::from(side));
            (begin, (end - begin).max(0) as u32)
        };
        let ((x, columns), (y, rows)) = (overlap(left, width), overlap(top, height));
        if columns > 0 && rows > 0 {
            let inside = image.view(x as u32, y as u32, columns, rows);
            out.copy_from(&*inside, (x - left) as u32, (y - top) as u32)
                .map_err(|e| DataError::ImageSize { width, height, reason: e.to_string() })?;
        }
        Ok(out)
    }
}

fn too_small(image: &RgbImage, size: u32, padding: u32) -> DataError {
    let reason = format!("too small for a crop of {size}x{size} with {padding} pixels of padding");
    DataError::ImageSize { width: image.width(), height: image.height(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};
    use image::Rgb;
    use std::collections::BTreeSet;

    /// Each pixel's colour tells its place, from 1.
    fn image(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([x as u8 + 1, y as u8 + 1, 9]))
    }

    #[test]
    fn the_middle_is_the_middle() {
        let got = center_crop(image(7, 5), 3).unwrap();
        assert_eq!(got.get_pixel(0, 0).0, [3, 2, 9]);
        assert_eq!(got.dimensions(), (3, 3));
        assert!(center_crop(image(7, 2), 3).is_err());
    }

    #[test]
    fn random_crops_reach_every_place_and_pad_with_black() {
        let image = image(4, 4);
        let crop = RandomCrop { size: 4, padding: 2 };
        let mut places = BTreeSet::new();
        for index in 0..500 {
            let got = crop.apply(&image, &mut rng_for(0, Purpose::Augment, 0, index)).unwrap();
            // The middle pixel is always inside the image; it gives the shift away.
            let [x, y, _] = got.get_pixel(2, 2).0;
            if x == 0 || y == 0 {
                continue;
            }
            let (dx, dy) = (i32::from(x) - 3, i32::from(y) - 3);
            places.insert((dx, dy));
            for (px, py, pixel) in got.enumerate_pixels() {
                let (sx, sy) = (px as i32 + dx, py as i32 + dy);
                let inside = (0..4).contains(&sx) && (0..4).contains(&sy);
                let expected = if inside { image.get_pixel(sx as u32, sy as u32).0 } else { [0; 3] };
                assert_eq!(pixel.0, expected);
            }
        }
        assert!(places.len() >= 16, "{places:?}");
    }

    #[test]
    fn padding_wider_than_the_square_and_too_small_images() {
        let crop = RandomCrop { size: 2, padding: 10 };
        for index in 0..100 {
            assert!(crop.apply(&image(3, 3), &mut rng_for(1, Purpose::Augment, 0, index)).is_ok());
        }
        let crop = RandomCrop { size: 8, padding: 2 };
        assert!(crop.apply(&image(3, 8), &mut rng_for(1, Purpose::Augment, 0, 0)).is_err());
    }
}
