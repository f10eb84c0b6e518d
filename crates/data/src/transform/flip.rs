//! Mirrors an image left to right by chance.

use image::RgbImage;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Mirrors with a probability from 0 to 1.
#[must_use]
pub fn random_flip(mut image: RgbImage, probability: f32, rng: &mut ChaCha8Rng) -> RgbImage {
    // A draw in [0, 1) is below 1 always and below 0 never.
    if rng.random::<f32>() < probability {
        image::imageops::flip_horizontal_in_place(&mut image);
    }
    image
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};
    use image::Rgb;

    #[test]
    fn flips_as_often_as_asked() {
        let image = RgbImage::from_fn(3, 2, |x, _| Rgb([x as u8; 3]));
        let count = |probability| {
            (0..1000)
                .filter(|&index| {
                    let got =
                        random_flip(image.clone(), probability, &mut rng_for(0, Purpose::Augment, 0, index));
                    assert_eq!(got.get_pixel(1, 0).0, [1; 3]);
                    got.get_pixel(0, 0).0 == [2; 3]
                })
                .count()
        };
        assert_eq!(count(0.0), 0);
        assert_eq!(count(1.0), 1000);
        assert!((440..560).contains(&count(0.5)));
    }
}
