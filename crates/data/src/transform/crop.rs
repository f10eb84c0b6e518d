//! Square crops: from the centre, or at a random position after padding.

use crate::error::{DataError, Result};
use crate::rng::below;
use image::{GenericImageView, RgbImage};
use rand_chacha::ChaCha8Rng;

/// A square crop at a random position of the image with a black border.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomCrop {
    /// The side of the square in pixels.
    pub size: u32,
    /// The width of the border on each side in pixels. It is black before normalisation, as in torchvision.
    pub padding: u32,
}

/// Crops a square of `size` pixels from the centre.
///
/// # Errors
/// If the image is smaller.
pub fn center_crop(image: RgbImage, size: u32) -> Result<RgbImage> {
    let (width, height) = image.dimensions();
    if (width, height) == (size, size) {
        return Ok(image);
    }
    if width < size || height < size {
        return Err(too_small((width, height), size, 0));
    }
    Ok(image.view((width - size) / 2, (height - size) / 2, size, size).to_image())
}

impl RandomCrop {
    /// Chooses the corner of the square in an image of this size: x, then y, negative within the border.
    ///
    /// # Errors
    /// If the image is smaller than the square even with its border.
    pub fn random_corner(&self, width: u32, height: u32, rng: &mut ChaCha8Rng) -> Result<(i32, i32)> {
        // The number of positions along each side; i64 holds the sums for any image.
        let places =
            |side: u32| (i64::from(side) + 2 * i64::from(self.padding) - i64::from(self.size) + 1).max(0);
        let (across, down) = (places(width), places(height));
        if across == 0 || down == 0 {
            return Err(too_small((width, height), self.size, self.padding));
        }
        let left = below(rng, across as usize) as i64 - i64::from(self.padding);
        let top = below(rng, down as usize) as i64 - i64::from(self.padding);
        let narrow = |corner: i64| {
            let reason = || format!("a corner at {corner} does not fit into 32 bits");
            i32::try_from(corner).map_err(|_| DataError::ImageSize { width, height, reason: reason() })
        };
        Ok((narrow(left)?, narrow(top)?))
    }
}

fn too_small((width, height): (u32, u32), size: u32, padding: u32) -> DataError {
    let reason = format!("too small for a crop of {size}x{size} with {padding} pixels of padding");
    DataError::ImageSize { width, height, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::places_in_colours as image;

    #[test]
    fn the_centre_is_cropped() {
        let got = center_crop(image(7, 5), 3).unwrap();
        assert_eq!(got.get_pixel(0, 0).0, [3, 2, 9]);
        assert_eq!(got.dimensions(), (3, 3));
        assert!(center_crop(image(7, 2), 3).is_err());
    }
}
