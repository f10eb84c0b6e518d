//! RandAugment (Cubuk et al. 2020): some operations at random, all of the same magnitude.

use super::affine::AffineMap;
use super::colours;
use crate::error::{DataError, Result};
use crate::rng::below;
use image::{Rgb, RgbImage};
use rand_chacha::ChaCha8Rng;

/// RandAugment with the operations and magnitudes of torchvision's `RandAugment`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandAugment {
    /// The number of operations, each drawn from all.
    pub ops: usize,
    /// The magnitude of all operations, below [`RandAugment::BINS`].
    pub magnitude: usize,
    /// The interpolation of geometric operations.
    pub interpolation: Interpolation,
    /// The colour outside of the image after geometric operations.
    pub fill: [u8; 3],
}

/// The interpolation of geometric operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interpolation {
    /// The nearest pixel, torchvision's default.
    #[default]
    Nearest,
    /// Between four pixels.
    Bilinear,
}

crate::choices::choices! {
    Interpolation: "transform.rand_augment.interpolation" { Nearest = "nearest", Bilinear = "bilinear" }
}

/// An operation of [`RandAugment`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AugmentOp {
    /// No change.
    Identity,
    /// A horizontal shear of up to 0.3.
    ShearX,
    /// A vertical shear of up to 0.3.
    ShearY,
    /// A horizontal translation of up to 150/331 of the width, in whole pixels.
    TranslateX,
    /// A vertical translation of up to 150/331 of the height, in whole pixels.
    TranslateY,
    /// A rotation of up to 30 degrees.
    Rotate,
    /// A brightness of 1 ± 0.9.
    Brightness,
    /// A saturation of 1 ± 0.9.
    Color,
    /// A contrast of 1 ± 0.9.
    Contrast,
    /// A sharpness of 1 ± 0.9.
    Sharpness,
    /// 8 to 4 bits for each channel.
    Posterize,
    /// The inversion of bytes above a threshold from 255 to 0.
    Solarize,
    /// The full range for each channel.
    AutoContrast,
    /// A uniform histogram for each channel.
    Equalize,
}

impl AugmentOp {
    /// All operations, in the order of torchvision.
    pub const ALL: [Self; 14] = [
        Self::Identity,
        Self::ShearX,
        Self::ShearY,
        Self::TranslateX,
        Self::TranslateY,
        Self::Rotate,
        Self::Brightness,
        Self::Color,
        Self::Contrast,
        Self::Sharpness,
        Self::Posterize,
        Self::Solarize,
        Self::AutoContrast,
        Self::Equalize,
    ];

    /// Returns true if the magnitude has a random sign.
    fn is_signed(self) -> bool {
        use AugmentOp::{
            Brightness, Color, Contrast, Rotate, Sharpness, ShearX, ShearY, TranslateX, TranslateY,
        };
        let signed = [ShearX, ShearY, TranslateX, TranslateY, Rotate, Brightness, Color, Contrast, Sharpness];
        signed.contains(&self)
    }

    /// Returns the magnitude of a bin for an image of this size, without sign.
    fn magnitude(self, bin: usize, width: u32, height: u32) -> f64 {
        let most = match self {
            Self::ShearX | Self::ShearY => 0.3,
            Self::TranslateX => 150.0 / 331.0 * f64::from(width),
            Self::TranslateY => 150.0 / 331.0 * f64::from(height),
            Self::Rotate => 30.0,
            Self::Brightness | Self::Color | Self::Contrast | Self::Sharpness => 0.9,
            Self::Posterize => {
                let step = (RandAugment::BINS - 1) as f32 / 4.0;
                return 8.0 - f64::from((bin as f32 / step).round_ties_even());
            }
            Self::Solarize => return linspace(255.0, 0.0, bin),
            Self::Identity | Self::AutoContrast | Self::Equalize => return 0.0,
        };
        linspace(0.0, most, bin)
    }
}

/// Returns element `bin` of `torch.linspace(from, to, BINS)`, which is f32.
fn linspace(from: f64, to: f64, bin: usize) -> f64 {
    let (from, to, last) = (from as f32, to as f32, RandAugment::BINS - 1);
    let step = (to - from) / last as f32;
    let value = if bin <= last / 2 { from + step * bin as f32 } else { to - step * (last - bin) as f32 };
    f64::from(value)
}

impl RandAugment {
    /// The number of magnitudes.
    pub const BINS: usize = 31;

    /// Makes RandAugment of this many operations and this magnitude, with the nearest pixel and black outside.
    #[must_use]
    pub fn new(ops: usize, magnitude: usize) -> Self {
        Self { ops, magnitude, interpolation: Interpolation::Nearest, fill: [0; 3] }
    }

    /// Checks the settings.
    pub(super) fn validate(&self) -> Result<()> {
        if self.magnitude < Self::BINS {
            return Ok(());
        }
        let reason = format!("a magnitude of {}, which is not below {}", self.magnitude, Self::BINS);
        Err(DataError::config("transform.rand_augment", reason))
    }

    /// Applies operations that are drawn from `rng`.
    pub(super) fn apply(&self, mut image: RgbImage, rng: &mut ChaCha8Rng) -> RgbImage {
        for _ in 0..self.ops {
            let op = AugmentOp::ALL[below(rng, AugmentOp::ALL.len())];
            let is_negative = op.is_signed() && below(rng, 2) == 1;
            image = self.apply_op(op, is_negative, image);
        }
        image
    }

    /// Applies an operation, with the magnitude negated if `is_negative`.
    #[must_use]
    pub fn apply_op(&self, op: AugmentOp, is_negative: bool, mut image: RgbImage) -> RgbImage {
        let (width, height) = image.dimensions();
        let size = op.magnitude(self.magnitude, width, height);
        let size = if is_negative { -size } else { size };
        match op {
            AugmentOp::Identity => {}
            AugmentOp::ShearX => return self.mapped(AffineMap::shear_x(size), &image),
            AugmentOp::ShearY => return self.mapped(AffineMap::shear_y(size), &image),
            AugmentOp::TranslateX => return self.mapped(AffineMap::translate(size.trunc(), 0.0), &image),
            AugmentOp::TranslateY => return self.mapped(AffineMap::translate(0.0, size.trunc()), &image),
            AugmentOp::Rotate => return self.mapped(AffineMap::rotate(size, width, height), &image),
            AugmentOp::Brightness => colours::brightness(&mut image, 1.0 + size),
            AugmentOp::Color => colours::saturation(&mut image, 1.0 + size),
            AugmentOp::Contrast => colours::contrast(&mut image, 1.0 + size),
            AugmentOp::Sharpness => colours::sharpness(&mut image, 1.0 + size),
            AugmentOp::Posterize => colours::posterize(&mut image, size as u32),
            AugmentOp::Solarize => colours::solarize(&mut image, size),
            AugmentOp::AutoContrast => colours::autocontrast(&mut image),
            AugmentOp::Equalize => colours::equalize(&mut image),
        }
        image
    }

    fn mapped(&self, map: AffineMap, image: &RgbImage) -> RgbImage {
        match self.interpolation {
            Interpolation::Nearest => map.nearest(image, Rgb(self.fill)),
            Interpolation::Bilinear => map.bilinear(image, Rgb(self.fill)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};

    #[test]
    fn every_operation_is_drawn_and_nothing_else_changes_a_picture() {
        let image = RgbImage::from_fn(12, 9, |x, y| Rgb([(x * 20) as u8, (y * 25) as u8, (x * y) as u8]));
        let augment = RandAugment::new(1, 9);
        let made = |index| augment.apply(image.clone(), &mut rng_for(0, Purpose::RandAugment, 0, index));
        let mut known = Vec::new();
        for op in AugmentOp::ALL {
            let signs: &[bool] = if op.is_signed() { &[false, true] } else { &[false] };
            known.extend(signs.iter().map(|negative| augment.apply_op(op, *negative, image.clone())));
        }
        let mut seen = vec![0; known.len()];
        for index in 0..2000 {
            let found = made(index);
            seen[known.iter().position(|known| *known == found).expect("an operation")] += 1;
            assert_eq!(found, made(index));
        }
        // Equal pictures count for the first operation.
        assert!(seen.iter().filter(|count| **count > 20).count() > 18, "{seen:?}");
        assert_eq!(
            RandAugment::new(0, 9).apply(image.clone(), &mut rng_for(0, Purpose::RandAugment, 0, 0)),
            image
        );
        assert!(RandAugment::new(2, 31).validate().is_err());
    }
}
