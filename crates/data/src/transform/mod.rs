//! From a decoded image to numbers: resize (or a random part), crop, flip, normalise, in this order.
//!
//! What is random is keyed by (seed, epoch, index), so a sample is augmented alike on whatever
//! rank, thread, or resumed run it is loaded.

pub mod area_crop;
pub mod crop;
pub mod flip;
pub mod normalise;
pub mod placement;
pub mod resize;

use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for};
pub use area_crop::AreaCrop;
pub use crop::{RandomCrop, center_crop};
pub use flip::random_flip;
use image::RgbImage;
pub use normalise::Normalise;
pub use placement::Placement;
use rand_chacha::ChaCha8Rng;
pub use resize::{Filter, Resize, ResizeMode};

/// The steps of a [`Transform`]; those that are `None` are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformConfig {
    /// Changes the size, first.
    pub resize: Option<Resize>,
    /// Takes a random part and makes a square of it, instead of a resize.
    pub area_crop: Option<AreaCrop>,
    /// Cuts a square of so many pixels from the middle.
    pub center_crop: Option<u32>,
    /// Cuts a square from a random place.
    pub random_crop: Option<RandomCrop>,
    /// The probability of mirroring, 0 to 1.
    pub flip: f32,
    /// Turns bytes into numbers, last.
    pub normalise: Normalise,
    /// Fixes the random steps.
    pub seed: u64,
}

impl Default for TransformConfig {
    /// Only turns bytes into numbers from −1 to 1.
    fn default() -> Self {
        Self {
            resize: None,
            area_crop: None,
            center_crop: None,
            random_crop: None,
            flip: 0.0,
            normalise: Normalise::SYMMETRIC,
            seed: 0,
        }
    }
}

impl TransformConfig {
    /// What classifiers of CIFAR-10 train with: crops of 32 with 4 pixels of padding, and flips.
    #[must_use]
    pub fn cifar10_train(seed: u64) -> Self {
        Self {
            random_crop: Some(RandomCrop { size: 32, padding: 4 }),
            flip: 0.5,
            seed,
            ..Self::cifar10_test()
        }
    }

    /// What classifiers of CIFAR-10 are judged with: normalisation only.
    #[must_use]
    pub fn cifar10_test() -> Self {
        Self { normalise: Normalise::CIFAR10, ..Self::default() }
    }

    /// Squares of `size` pixels with values from −1 to 1, for generative models.
    #[must_use]
    pub fn square(size: u32, filter: Filter) -> Self {
        Self { resize: Some(Resize::square(size, filter)), ..Self::default() }
    }
}

/// Turns decoded images into numbers; see the [module](self).
#[derive(Debug, Clone)]
pub struct Transform {
    config: TransformConfig,
}

impl Transform {
    /// Checks the configuration.
    ///
    /// # Errors
    /// If a size is 0, a crop never fits the step before it, there is a resize besides a random part, the probability is not
    /// one, or the normalisation cannot be divided by.
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
        if let Some(part) = &config.area_crop {
            part.validate()?;
            if config.resize.is_some() {
                let reason = "a random part is resized by itself, so there is no other resize";
                return Err(DataError::config("transform.area_crop", reason));
            }
        }
        // The sides are known after a resize to a square and after a crop.
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

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &TransformConfig {
        &self.config
    }

    /// The side of the squares that come out, where it does not depend on the images.
    #[must_use]
    pub fn output_side(&self) -> Option<u32> {
        let config = &self.config;
        config.random_crop.map(|crop| crop.size).or(self.source_side())
    }

    /// All steps but the last: the image that would be normalised, as people can look at it.
    ///
    /// # Errors
    /// If the image is too small for a crop.
    pub fn image(&self, image: RgbImage, epoch: u64, index: usize) -> Result<RgbImage> {
        let (image, placement, size) = self.placed(image, epoch, index)?;
        placement.apply(image, size)
    }

    /// The image before chance places it, what is then done to it, and the width and height of what comes out: the steps of
    /// [`Transform::image`] for whoever does the last of them elsewhere.
    ///
    /// # Errors
    /// If the image is too small for a crop.
    pub fn placed(
        &self,
        image: RgbImage,
        epoch: u64,
        index: usize,
    ) -> Result<(RgbImage, Placement, (u32, u32))> {
        let mut rng = self.rng(epoch, index);
        let image = self.sized(image, &mut rng)?;
        let (placement, size) = self.place(image.dimensions(), &mut rng)?;
        Ok((image, placement, size))
    }

    /// What [`Transform::placed`] says of an image that somebody has: there must be a [`Transform::fixed_side`].
    ///
    /// # Errors
    /// If the sides of images depend on them, or their pixels on the epoch, or images are too small for a crop.
    pub fn placement(&self, epoch: u64, index: usize) -> Result<(Placement, (u32, u32))> {
        let none = || DataError::config("transform", "images before the last crop have no size of their own");
        let side = self.fixed_side().ok_or_else(none)?;
        self.place((side, side), &mut self.rng(epoch, index))
    }

    /// The side of the images before chance places them, where it does not depend on the images.
    #[must_use]
    pub fn source_side(&self) -> Option<u32> {
        self.config.center_crop.or(resized_side(&self.config))
    }

    /// The side of the images before chance places them, where neither it depends on the images nor any pixel on the epoch.
    #[must_use]
    pub fn fixed_side(&self) -> Option<u32> {
        self.source_side().filter(|_| self.config.area_crop.is_none())
    }

    fn rng(&self, epoch: u64, index: usize) -> ChaCha8Rng {
        rng_for(self.config.seed, Purpose::Augment, epoch, index as u64)
    }

    /// The steps that mix pixels or settle the size: those before a random crop.
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

    /// Draws what is done to an image of this width and height, and the width and height of what comes out.
    fn place(&self, size: (u32, u32), rng: &mut ChaCha8Rng) -> Result<(Placement, (u32, u32))> {
        let config = &self.config;
        let ((left, top), size) = match &config.random_crop {
            Some(crop) => (crop.draw(size.0, size.1, rng)?, (crop.size, crop.size)),
            None => ((0, 0), size),
        };
        let flipped = config.flip > 0.0 && random_flip(config.flip, rng);
        Ok((Placement { left, top, flipped }, size))
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
        let image = self.image(image, epoch, index)?;
        self.config.normalise.append(&image, out);
        Ok([3, image.height() as usize, image.width() as usize])
    }
}

/// The side after the first step, where it does not depend on the image.
fn resized_side(config: &TransformConfig) -> Option<u32> {
    let square = config.resize.filter(|resize| resize.mode == ResizeMode::Square).map(|resize| resize.size);
    config.area_crop.map(|part| part.size).or(square)
}

/// An image whose every pixel's colour tells its place, from 1.
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
            TransformConfig { normalise: Normalise { mean: [0.0; 3], std: [0.0; 3] }, ..base.clone() },
        ] {
            assert!(Transform::new(bad.clone()).is_err(), "{bad:?}");
        }
    }
}
