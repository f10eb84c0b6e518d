//! Cuts a square out of an image: from the middle, or from a random place after padding.

use crate::error::{DataError, Result};
use crate::rng::below;
use image::{GenericImageView, RgbImage};
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
        return Err(too_small((width, height), size, 0));
    }
    Ok(image.view((width - size) / 2, (height - size) / 2, size, size).to_image())
}

impl RandomCrop {
    /// Draws where the square's corner lies in an image of this size: across, then down, negative within the border.
    ///
    /// # Errors
    /// If the image is smaller than the square even with its border.
    pub fn draw(&self, width: u32, height: u32, rng: &mut ChaCha8Rng) -> Result<(i32, i32)> {
        // How many places there are along each side; the sums are wide enough for any image.
        let places =
            |side: u32| (i64::from(side) + 2 * i64::from(self.padding) - i64::from(self.size) + 1).max(0);
        let (across, down) = (places(width), places(height));
        if across == 0 || down == 0 {
            return Err(too_small((width, height), self.size, self.padding));
        }
        let left = below(rng, across as usize) as i64 - i64::from(self.padding);
        let top = below(rng, down as usize) as i64 - i64::from(self.padding);
        let narrow = |corner: i64| {
            let reason = || format!("a corner at {corner} is beyond what 32 bits say");
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
    fn the_middle_is_the_middle() {
        let got = center_crop(image(7, 5), 3).unwrap();
        assert_eq!(got.get_pixel(0, 0).0, [3, 2, 9]);
        assert_eq!(got.dimensions(), (3, 3));
        assert!(center_crop(image(7, 2), 3).is_err());
    }
}
