//! The random position and flip of a crop, for images of known size, and what is erased of it.

use super::erasing::Patch;
use crate::error::{DataError, Result};
use image::{GenericImage, GenericImageView, RgbImage};
use serde::{Deserialize, Serialize};

/// The remaining steps of an image of final size, applied by [`Placement::apply`] on the host, or by a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Placement {
    /// The column of the image at which the result begins; negative within a black border.
    pub left: i32,
    /// The row of the image at which the result begins; negative within a black border.
    pub top: i32,
    /// Mirrors the result left to right, after the crop.
    pub flipped: bool,
    /// The rectangle of the result that is 0 after the normalisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased: Option<Patch>,
}

impl Placement {
    /// Crops to `size`, a width and a height, and mirrors. Pixels outside the image are black. Nothing is erased: bytes have
    /// no 0 of the normalisation.
    ///
    /// # Errors
    /// If the copy fails, which is a bug of this module.
    pub fn apply(self, image: RgbImage, size: (u32, u32)) -> Result<RgbImage> {
        let mut out = match (self.left, self.top) {
            (0, 0) if image.dimensions() == size => image,
            _ => self.crop(&image, size)?,
        };
        if self.flipped {
            image::imageops::flip_horizontal_in_place(&mut out);
        }
        Ok(out)
    }

    fn crop(self, image: &RgbImage, size: (u32, u32)) -> Result<RgbImage> {
        let (width, height) = image.dimensions();
        let mut out = RgbImage::new(size.0, size.1);
        // The overlap of the result with the image, along one side.
        let overlap = |corner: i32, wanted: u32, side: u32| {
            let corner = i64::from(corner);
            let begin = corner.max(0);
            let end = (corner + i64::from(wanted)).min(i64::from(side));
            (begin as u32, (begin - corner) as u32, (end - begin).max(0) as u32)
        };
        let (x, to_x, columns) = overlap(self.left, size.0, width);
        let (y, to_y, rows) = overlap(self.top, size.1, height);
        if columns > 0 && rows > 0 {
            out.copy_from(&*image.view(x, y, columns, rows), to_x, to_y)
                .map_err(|e| DataError::ImageSize { width, height, reason: e.to_string() })?;
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};
    use crate::transform::{RandomCrop, places_in_colours as image};
    use std::collections::BTreeSet;

    #[test]
    fn mirroring_follows_cropping() {
        let got =
            Placement { left: 1, top: -1, flipped: true, erased: None }.apply(image(4, 2), (2, 2)).unwrap();
        let pixel = |x, y| got.get_pixel(x, y).0;
        assert_eq!(
            [pixel(0, 0), pixel(1, 0), pixel(0, 1), pixel(1, 1)],
            [[0; 3], [0; 3], [3, 1, 9], [2, 1, 9]]
        );
    }

    #[test]
    fn random_crops_reach_every_position_and_pad_with_black() {
        let image = image(4, 4);
        let crop = RandomCrop { size: 4, padding: 2 };
        let mut places = BTreeSet::new();
        for index in 0..500 {
            let (left, top) = crop.random_corner(4, 4, &mut rng_for(0, Purpose::Augment, 0, index)).unwrap();
            let got = Placement { left, top, ..Placement::default() }.apply(image.clone(), (4, 4)).unwrap();
            // The centre pixel is always inside the image and reveals the shift.
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
            let (left, top) = crop.random_corner(3, 3, &mut rng_for(1, Purpose::Augment, 0, index)).unwrap();
            let got = Placement { left, top, ..Placement::default() }.apply(image(3, 3), (2, 2)).unwrap();
            assert_eq!(got.dimensions(), (2, 2));
        }
        let crop = RandomCrop { size: 8, padding: 2 };
        assert!(crop.random_corner(3, 8, &mut rng_for(1, Purpose::Augment, 0, 0)).is_err());
    }
}
