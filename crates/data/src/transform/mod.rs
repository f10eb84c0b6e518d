//! Transforms of decoded images: resize (or a random area), crop, flip, RandAugment, colour jitter, normalise, erase, in
//! this order.
//!
//! Random steps are keyed by (seed, epoch, index), so a sample is augmented the same way on any rank and thread and
//! after any resumption.

mod affine;
mod colours;

pub mod area_crop;
pub mod color_jitter;
pub mod crop;
pub mod erasing;
pub mod flip;
pub mod normalise;
pub mod placement;
pub mod rand_augment;
pub mod resize;

#[cfg(test)]
mod torchvision;

use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for};
pub use area_crop::AreaCrop;
pub use color_jitter::ColorJitter;
pub use crop::{RandomCrop, center_crop};
pub use erasing::{Patch, RandomErasing};
pub use flip::random_flip;
use image::RgbImage;
pub use normalise::Normalise;
pub use placement::Placement;
pub use rand_augment::{AugmentOp, Interpolation, RandAugment};
use rand_chacha::ChaCha8Rng;
pub use resize::{Filter, Resize, ResizeMode};

/// The steps of a [`Transform`]; `None` omits a step.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformConfig {
    /// The resize, the first step.
    pub resize: Option<Resize>,
    /// The crop of a random area resized to a square, instead of a resize.
    pub area_crop: Option<AreaCrop>,
    /// The side in pixels of a square crop from the centre.
    pub center_crop: Option<u32>,
    /// A square crop at a random position.
    pub random_crop: Option<RandomCrop>,
    /// The probability of a horizontal flip, 0 to 1.
    pub flip: f32,
    /// Operations at random on the cropped image.
    pub rand_augment: Option<RandAugment>,
    /// Random brightness, contrast, saturation and hue, after `rand_augment`.
    pub color_jitter: Option<ColorJitter>,
    /// The normalisation.
    pub normalise: Normalise,
    /// A random rectangle of zeros in the normalised image, the last step.
    pub erasing: Option<RandomErasing>,
    /// The seed of the random steps.
    pub seed: u64,
}

impl Default for TransformConfig {
    /// Only normalises to values from −1 to 1.
    fn default() -> Self {
        Self {
            resize: None,
            area_crop: None,
            center_crop: None,
            random_crop: None,
            flip: 0.0,
            rand_augment: None,
            color_jitter: None,
            normalise: Normalise::SYMMETRIC,
            erasing: None,
            seed: 0,
        }
    }
}

impl TransformConfig {
    /// Returns the usual training transform of CIFAR-10: crops of 32 pixels with 4 pixels of padding, and flips.
    #[must_use]
    pub fn cifar10_train(seed: u64) -> Self {
        Self {
            random_crop: Some(RandomCrop { size: 32, padding: 4 }),
            flip: 0.5,
            seed,
            ..Self::cifar10_test()
        }
    }

    /// Returns the usual evaluation transform of CIFAR-10: normalisation only.
    #[must_use]
    pub fn cifar10_test() -> Self {
        Self { normalise: Normalise::CIFAR10, ..Self::default() }
    }

    /// Returns a resize to squares of `size` pixels with values from −1 to 1, for generative models.
    #[must_use]
    pub fn square(size: u32, filter: Filter) -> Self {
        Self { resize: Some(Resize::square(size, filter)), ..Self::default() }
    }
}

/// A transform of decoded images to numbers; see the [module](self).
#[derive(Debug, Clone)]
pub struct Transform {
    config: TransformConfig,
}

impl Transform {
    /// Checks the settings.
    ///
    /// # Errors
    /// If a size is 0, a crop never fits the step before, a resize is combined with a random area, a probability or a
    /// magnitude is out of range, or the normalisation is invalid.
    pub fn new(config: TransformConfig) -> Result<Self> {
        let sizes = [
            ("transform.resize.size", config.resize.map(|resize| resize.size)),
            ("transform.center_crop", config.center_crop),
            ("transform.random_crop.size", config.random_crop.map(|crop| crop.size)),
        ];
        for (what, size) in sizes {
            if size == Some(0) {
                return Err(DataError::config(what, "a size of 0 pixels"));
            }
        }
        if !(0.0..=1.0).contains(&config.flip) {
            return Err(DataError::config("transform.flip", format!("{} is not a probability", config.flip)));
        }
        config.normalise.validate()?;
        config.rand_augment.as_ref().map_or(Ok(()), RandAugment::validate)?;
        config.color_jitter.as_ref().map_or(Ok(()), ColorJitter::validate)?;
        config.erasing.as_ref().map_or(Ok(()), RandomErasing::validate)?;
        if let Some(part) = &config.area_crop {
            part.validate()?;
            if config.resize.is_some() {
                let reason = "a random area is already resized; remove the other resize";
                return Err(DataError::config("transform.area_crop", reason));
            }
        }
        // The side is known after a resize to a square and after a crop.
        let resized = resized_side(&config);
        if let (Some(side), Some(crop)) = (resized, config.center_crop)
            && side < crop
        {
            return Err(DataError::config(
                "transform.center_crop",
                format!("a crop of {crop} from a square of {side}"),
            ));
        }
        if let (Some(side), Some(crop)) = (config.center_crop.or(resized), config.random_crop)
            && u64::from(side) + 2 * u64::from(crop.padding) < u64::from(crop.size)
        {
            let reason =
                format!("a crop of {} from a square of {side} padded by {}", crop.size, crop.padding);
            return Err(DataError::config("transform.random_crop", reason));
        }
        Ok(Self { config })
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &TransformConfig {
        &self.config
    }

    /// Returns the side of the resulting squares, if it does not depend on the images.
    #[must_use]
    pub fn output_side(&self) -> Option<u32> {
        let config = &self.config;
        config.random_crop.map(|crop| crop.size).or(self.source_side())
    }

    /// Applies the steps before the normalisation.
    ///
    /// # Errors
    /// If the image is too small for a crop.
    pub fn image(&self, image: RgbImage, epoch: u64, index: usize) -> Result<RgbImage> {
        let (image, placement, size) = self.placed(image, epoch, index)?;
        placement.apply(image, size)
    }

    /// Applies the steps before the random crop, or all before the normalisation if one of these changes colours. Returns
    /// the image, the remaining placement, and the width and height of the result, for a consumer that runs the remaining
    /// steps elsewhere.
    ///
    /// # Errors
    /// If the image is too small for a crop.
    pub fn placed(
        &self,
        image: RgbImage,
        epoch: u64,
        index: usize,
    ) -> Result<(RgbImage, Placement, (u32, u32))> {
        let mut rng = self.rng(Purpose::Augment, epoch, index);
        let mut image = self.sized(image, &mut rng)?;
        let (mut placement, size) = self.place(image.dimensions(), &mut rng)?;
        if self.changes_pixels() {
            image = placement.apply(image, size)?;
            if let Some(augment) = &self.config.rand_augment {
                image = augment.apply(image, &mut self.rng(Purpose::RandAugment, epoch, index));
            }
            if let Some(jitter) = &self.config.color_jitter {
                jitter.apply(&mut image, &mut self.rng(Purpose::ColorJitter, epoch, index));
            }
            placement = Placement::default();
        }
        placement.erased = self.erased(size, epoch, index);
        Ok((image, placement, size))
    }

    /// Returns the placement and size of [`Transform::placed`] for a cached image. Requires a
    /// [`Transform::fixed_side`].
    ///
    /// # Errors
    /// If the size of images or their pixels vary, or images are too small for a crop.
    pub fn placement(&self, epoch: u64, index: usize) -> Result<(Placement, (u32, u32))> {
        let none = || DataError::config("transform", "images have no fixed size before the last crop");
        let side = self.fixed_side().ok_or_else(none)?;
        let (placement, size) = self.place((side, side), &mut self.rng(Purpose::Augment, epoch, index))?;
        Ok((Placement { erased: self.erased(size, epoch, index), ..placement }, size))
    }

    /// Returns true if a random step changes more than positions, so that the pixels depend on the epoch.
    fn changes_pixels(&self) -> bool {
        self.config.rand_augment.is_some_and(|augment| augment.ops > 0) || self.config.color_jitter.is_some()
    }

    /// Draws the rectangle of a result of this width and height that is erased.
    fn erased(&self, size: (u32, u32), epoch: u64, index: usize) -> Option<Patch> {
        self.config.erasing?.patch(size, &mut self.rng(Purpose::Erase, epoch, index))
    }

    /// Returns the side of the images of [`Transform::placed`], if it does not depend on the images.
    #[must_use]
    pub fn source_side(&self) -> Option<u32> {
        let crop = self.config.random_crop.filter(|_| self.changes_pixels()).map(|crop| crop.size);
        crop.or(self.config.center_crop).or(resized_side(&self.config))
    }

    /// Returns the side of the images before the random crop, if neither it depends on the images nor any pixel on the
    /// epoch.
    #[must_use]
    pub fn fixed_side(&self) -> Option<u32> {
        self.source_side().filter(|_| self.config.area_crop.is_none() && !self.changes_pixels())
    }

    fn rng(&self, purpose: Purpose, epoch: u64, index: usize) -> ChaCha8Rng {
        rng_for(self.config.seed, purpose, epoch, index as u64)
    }

    /// Applies the steps before the random crop.
    fn sized(&self, mut image: RgbImage, rng: &mut ChaCha8Rng) -> Result<RgbImage> {
        let config = &self.config;
        if let Some(part) = &config.area_crop {
            image = part.apply(&image, rng)?;
        }
        if let Some(resize) = &config.resize {
            image = resize.apply(image)?;
        }
        match config.center_crop {
            Some(size) => center_crop(image, size),
            None => Ok(image),
        }
    }

    /// Chooses the placement of an image of this width and height. Returns it with the width and height of the result.
    fn place(&self, size: (u32, u32), rng: &mut ChaCha8Rng) -> Result<(Placement, (u32, u32))> {
        let config = &self.config;
        let ((left, top), size) = match &config.random_crop {
            Some(crop) => (crop.random_corner(size.0, size.1, rng)?, (crop.size, crop.size)),
            None => ((0, 0), size),
        };
        let flipped = config.flip > 0.0 && random_flip(config.flip, rng);
        Ok((Placement { left, top, flipped, erased: None }, size))
    }

    /// Appends the transformed image to `out` and returns its shape [3, H, W].
    ///
    /// # Errors
    /// If the image is too small for a crop.
    pub fn append(
        &self,
        image: RgbImage,
        epoch: u64,
        index: usize,
        out: &mut Vec<f32>,
    ) -> Result<[usize; 3]> {
        let (image, placement, size) = self.placed(image, epoch, index)?;
        let (image, start) = (placement.apply(image, size)?, out.len());
        self.config.normalise.append(&image, out);
        let (width, height) = (image.width() as usize, image.height() as usize);
        if let Some(patch) = placement.erased {
            patch.rows_of(&mut out[start..], (width, height), |row| row.fill(0.0));
        }
        Ok([3, height, width])
    }
}

/// Returns the side after the first step, if it does not depend on the image.
fn resized_side(config: &TransformConfig) -> Option<u32> {
    let square = config.resize.filter(|resize| resize.mode == ResizeMode::Square).map(|resize| resize.size);
    config.area_crop.map(|part| part.size).or(square)
}

/// An image whose pixel colours encode their positions, from 1.
#[cfg(test)]
fn places_in_colours(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| image::Rgb([x as u8 + 1, y as u8 + 1, 9]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    #[test]
    fn steps_follow_each_other_and_repeat() {
        let config = TransformConfig {
            resize: Some(Resize { size: 40, filter: Filter::Bicubic, mode: ResizeMode::ShorterSide }),
            center_crop: Some(36),
            random_crop: Some(RandomCrop { size: 32, padding: 0 }),
            flip: 0.5,
            ..Default::default()
        };
        let transform = Transform::new(config).unwrap();
        assert_eq!(transform.output_side(), Some(32));
        let image = RgbImage::from_fn(64, 48, |x, y| Rgb([x as u8 * 3, y as u8 * 5, (x * y) as u8]));
        let run = |epoch, index| {
            let mut out = Vec::new();
            assert_eq!(transform.append(image.clone(), epoch, index, &mut out).unwrap(), [3, 32, 32]);
            assert_eq!(out.len(), 3 * 32 * 32);
            out
        };
        assert_eq!(run(1, 2), run(1, 2));
        assert_ne!(run(1, 2), run(2, 2));
        assert_ne!(run(1, 2), run(1, 3));
    }

    #[test]
    fn further_augmentation_leaves_crops_and_flips_as_they_are() {
        let plain = TransformConfig {
            resize: Some(Resize::square(20, Filter::Bilinear)),
            random_crop: Some(RandomCrop { size: 16, padding: 2 }),
            flip: 0.5,
            seed: 9,
            ..Default::default()
        };
        let jitter = ColorJitter { brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1 };
        let augmented = TransformConfig {
            rand_augment: Some(RandAugment::new(0, 9)),
            erasing: Some(RandomErasing::new(1.0)),
            ..plain.clone()
        };
        let image = RgbImage::from_fn(24, 24, |x, y| Rgb([x as u8 * 9, y as u8 * 9, (x * y) as u8]));
        let run = |config: &TransformConfig, index| {
            let mut out = Vec::new();
            Transform::new(config.clone()).unwrap().append(image.clone(), 3, index, &mut out).unwrap();
            out
        };
        for index in 0..8 {
            let (before, after) = (run(&plain, index), run(&augmented, index));
            let erased = before.iter().zip(&after).filter(|(before, after)| before != after);
            assert!(erased.clone().count() > 0 && erased.clone().all(|(_, after)| *after == 0.0));
        }
        let whole = TransformConfig {
            rand_augment: Some(RandAugment::new(2, 9)),
            color_jitter: Some(jitter),
            ..augmented
        };
        let transform = Transform::new(whole.clone()).unwrap();
        assert_eq!((transform.fixed_side(), transform.source_side()), (None, Some(16)));
        let (placed, placement, size) = transform.placed(image.clone(), 0, 1).unwrap();
        assert_eq!(
            (placed.dimensions(), size, (placement.left, placement.flipped)),
            ((16, 16), (16, 16), (0, false))
        );
        assert!(placement.erased.is_some());
        assert_eq!(run(&whole, 5), run(&whole, 5));
        assert_ne!(run(&whole, 5), run(&whole, 6));
    }

    #[test]
    fn impossible_settings_are_refused() {
        let base = TransformConfig::square(32, Filter::Bilinear);
        assert!(Transform::new(base.clone()).is_ok());
        for bad in [
            TransformConfig::square(0, Filter::Bilinear),
            TransformConfig { center_crop: Some(33), ..base.clone() },
            TransformConfig { random_crop: Some(RandomCrop { size: 41, padding: 4 }), ..base.clone() },
            TransformConfig { flip: 1.5, ..base.clone() },
            TransformConfig {
                area_crop: Some(AreaCrop {
                    size: 32,
                    area: (0.1, 1.0),
                    aspect: (1.0, 1.0),
                    filter: Filter::Bilinear,
                }),
                ..base.clone()
            },
            TransformConfig { flip: f32::NAN, ..base.clone() },
            TransformConfig { rand_augment: Some(RandAugment::new(2, 31)), ..base.clone() },
            TransformConfig { erasing: Some(RandomErasing::new(1.5)), ..base.clone() },
            TransformConfig { normalise: Normalise { mean: [0.0; 3], std: [0.0; 3] }, ..base.clone() },
        ] {
            assert!(Transform::new(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
