//! Normalisation of bytes: (x / 255 − mean) / std, in C, H, W order.

use crate::error::{DataError, Result};
use image::RgbImage;

/// Mean and standard deviation per channel, of values from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalise {
    /// The means of red, green and blue.
    pub mean: [f32; 3],
    /// The standard deviations of red, green and blue.
    pub std: [f32; 3],
}

impl Normalise {
    /// Values from 0 to 1.
    pub const UNIT: Self = Self { mean: [0.0; 3], std: [1.0; 3] };
    /// Values from −1 to 1: 2x − 1, for generative models.
    pub const SYMMETRIC: Self = Self { mean: [0.5; 3], std: [0.5; 3] };
    /// The statistics of CIFAR-10's training images.
    pub const CIFAR10: Self = Self { mean: [0.4914, 0.4822, 0.4465], std: [0.2470, 0.2435, 0.2616] };
    /// The statistics of ImageNet that torchvision's models use.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
    /// The statistics that openai/CLIP's image encoders use.
    pub const CLIP: Self = Self {
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    };

    /// The named normalisations.
    pub const NAMED: &'static [(&'static str, Self)] = &[
        ("symmetric", Self::SYMMETRIC),
        ("cifar10", Self::CIFAR10),
        ("imagenet", Self::IMAGENET),
        ("clip", Self::CLIP),
        ("unit", Self::UNIT),
    ];

    /// Checks the numbers.
    ///
    /// # Errors
    /// If a mean is not finite, or a standard deviation is not positive.
    pub fn validate(&self) -> Result<()> {
        let good =
            self.mean.iter().all(|m| m.is_finite()) && self.std.iter().all(|s| s.is_finite() && *s > 0.0);
        if good {
            return Ok(());
        }
        let reason = format!("mean {:?} must be finite and std {:?} positive", self.mean, self.std);
        Err(DataError::config("transform.normalise", reason))
    }

    /// Appends an image as 3·H·W numbers, channel by channel, rows from the top.
    pub fn append(&self, image: &RgbImage, out: &mut Vec<f32>) {
        let pixels = image.as_raw();
        out.reserve(pixels.len());
        for channel in 0..3 {
            // A table of the 256 byte values saves the arithmetic.
            let table: [f32; 256] = std::array::from_fn(|byte| self.value(byte as u8, channel));
            out.extend(pixels.iter().skip(channel).step_by(3).map(|&byte| table[usize::from(byte)]));
        }
    }

    /// Converts 3·H·W numbers back to an image, rounded and clamped to 0 to 255.
    ///
    /// # Errors
    /// If the number of values is not 3·`width`·`height`.
    pub fn to_image(&self, values: &[f32], width: u32, height: u32) -> Result<RgbImage> {
        let plane = width as usize * height as usize;
        if values.len() != 3 * plane {
            let reason = format!("{} numbers do not fill 3 channels", values.len());
            return Err(DataError::ImageSize { width, height, reason });
        }
        Ok(RgbImage::from_fn(width, height, |x, y| {
            let at = y as usize * width as usize + x as usize;
            image::Rgb(std::array::from_fn(|channel| {
                let value = values[channel * plane + at] * self.std[channel] + self.mean[channel];
                // The cast maps NaN to 0.
                (value * 255.0).round().clamp(0.0, 255.0) as u8
            }))
        }))
    }

    fn value(&self, byte: u8, channel: usize) -> f32 {
        (f32::from(byte) / 255.0 - self.mean[channel]) / self.std[channel]
    }
}

impl std::fmt::Display for Normalise {
    /// Writes the name, or the numbers.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Self::NAMED.iter().find(|(_, known)| known == self) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "mean {:?} std {:?}", self.mean, self.std),
        }
    }
}

impl std::str::FromStr for Normalise {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::NAMED.iter().find(|(name, _)| *name == text);
        let names = || Self::NAMED.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let reason = || format!("{text:?} is not one of {}", names());
        found.map(|(_, known)| *known).ok_or_else(|| DataError::config("transform.normalise", reason()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn channels_come_one_after_the_other() {
        let image = RgbImage::from_raw(2, 1, vec![0, 51, 102, 153, 204, 255]).unwrap();
        let mut out = Vec::new();
        Normalise::UNIT.append(&image, &mut out);
        assert_eq!(out, [0.0, 0.6, 0.2, 0.8, 0.4, 1.0]);
        out.clear();
        Normalise::SYMMETRIC.append(&image, &mut out);
        assert_eq!((out[0], out[5]), (-1.0, 1.0));
    }

    #[test]
    fn every_byte_survives_a_round_trip() {
        let image = RgbImage::from_fn(16, 16, |x, y| Rgb([(y * 16 + x) as u8, 255 - (y * 16 + x) as u8, 7]));
        for normalise in [Normalise::UNIT, Normalise::SYMMETRIC, Normalise::CIFAR10, Normalise::CLIP] {
            let mut out = Vec::new();
            normalise.append(&image, &mut out);
            assert_eq!(normalise.to_image(&out, 16, 16).unwrap(), image);
        }
        assert!(Normalise::UNIT.to_image(&[0.0; 5], 1, 1).is_err());
    }

    #[test]
    fn a_std_of_zero_is_refused() {
        assert!(Normalise { mean: [0.0; 3], std: [1.0, 0.0, 1.0] }.validate().is_err());
        assert!(Normalise { mean: [f32::NAN; 3], std: [1.0; 3] }.validate().is_err());
    }
}
