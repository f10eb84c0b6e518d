//! Random changes of brightness, contrast, saturation and hue.

use super::colours;
use crate::error::{DataError, Result};
use crate::rng::shuffle;
use image::RgbImage;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Random brightness, contrast, saturation and hue in random order: torchvision's `ColorJitter`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ColorJitter {
    /// The largest change of the factor of the brightness, which is 1 ± this and at least 0.
    pub brightness: f64,
    /// The largest change of the factor of the contrast.
    pub contrast: f64,
    /// The largest change of the factor of the saturation.
    pub saturation: f64,
    /// The largest turn of the hue, 0 to 0.5 of the circle.
    pub hue: f64,
}

impl ColorJitter {
    /// Checks the settings.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { brightness, contrast, saturation, hue } = *self;
        let sound = [brightness, contrast, saturation].iter().all(|range| range.is_finite() && *range >= 0.0);
        if sound && (0.0..=0.5).contains(&hue) {
            return Ok(());
        }
        let reason = format!("{self:?}: ranges are at least 0, and a hue is at most 0.5");
        Err(DataError::config("transform.color_jitter", reason))
    }

    /// Applies changes that are drawn from `rng`.
    pub(super) fn apply(&self, image: &mut RgbImage, rng: &mut ChaCha8Rng) {
        let between =
            |rng: &mut ChaCha8Rng, least: f64, most: f64| least + (most - least) * rng.random::<f64>();
        let mut order = [0, 1, 2, 3];
        shuffle(rng, &mut order);
        // All numbers are drawn, so that one range does not change the numbers of another.
        let factors = [self.brightness, self.contrast, self.saturation]
            .map(|range| between(rng, (1.0 - range).max(0.0), 1.0 + range));
        let turn = between(rng, -self.hue, self.hue);
        for which in order {
            match which {
                0 if self.brightness > 0.0 => colours::brightness(image, factors[0]),
                1 if self.contrast > 0.0 => colours::contrast(image, factors[1]),
                2 if self.saturation > 0.0 => colours::saturation(image, factors[2]),
                3 if self.hue > 0.0 => colours::hue(image, turn),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};
    use image::Rgb;

    fn jittered(jitter: ColorJitter, index: u64) -> RgbImage {
        let mut image = RgbImage::from_pixel(4, 4, Rgb([120, 60, 30]));
        jitter.apply(&mut image, &mut rng_for(0, Purpose::ColorJitter, 0, index));
        image
    }

    #[test]
    fn factors_are_within_their_ranges() {
        let brightness = |index| {
            let jitter = ColorJitter { brightness: 0.5, ..ColorJitter::default() };
            jittered(jitter, index).get_pixel(0, 0).0[0]
        };
        let seen: Vec<u8> = (0..500).map(brightness).collect();
        let (least, most) = (seen.iter().min().unwrap(), seen.iter().max().unwrap());
        assert!((60..65).contains(least) && (175..=180).contains(most), "{least} to {most}");
        assert_eq!(jittered(ColorJitter::default(), 3), RgbImage::from_pixel(4, 4, Rgb([120, 60, 30])));
        // A range above 1 does not make factors negative.
        let dark = ColorJitter { brightness: 3.0, ..ColorJitter::default() };
        assert!((0..50).any(|index| jittered(dark, index).get_pixel(0, 0).0[0] < 40));
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for bad in [
            ColorJitter { brightness: -0.1, ..ColorJitter::default() },
            ColorJitter { saturation: f64::NAN, ..ColorJitter::default() },
            ColorJitter { hue: 0.6, ..ColorJitter::default() },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
