//! The preparation of images by a configuration.

use phalanx_data::Mixing;
use phalanx_data::transform::{
    AreaCrop, ColorJitter, Normalise, RandAugment, RandomCrop, RandomErasing, Resize, ResizeMode, Transform,
    TransformConfig,
};

use crate::error::DatasetError;
use phalanx_config::{Config, DataConfig};

/// The side of the images that the model gets, in pixels.
fn side(config: &Config) -> Result<u32, DatasetError> {
    pixels("model.image_size", config.model.image_size)
}

/// The side that images are resized to before they are cropped, in pixels.
pub(crate) fn read_side(config: &Config) -> Result<u32, DatasetError> {
    match config.data.resize {
        0 => side(config),
        size => pixels("data.resize", size),
    }
}

fn pixels(key: &'static str, size: usize) -> Result<u32, DatasetError> {
    u32::try_from(size).map_err(|_| DatasetError::TooLarge { key, size })
}

/// The preparations of images.
#[derive(Debug, Clone)]
pub struct ImageTransforms {
    /// The preparation of training images.
    pub training: Transform,
    /// The preparation of test images.
    pub testing: Transform,
}

impl ImageTransforms {
    /// Creates the preparations of a configuration.
    ///
    /// # Errors
    /// If sizes or settings are not sound.
    pub fn of(config: &Config) -> Result<Self, DatasetError> {
        let [training, testing] = transforms(config)?.map(Transform::new);
        Ok(Self { training: training?, testing: testing? })
    }
}

/// The settings of the preparations of training and of test images.
fn transforms(config: &Config) -> Result<[TransformConfig; 2], DatasetError> {
    let (data, size, read) = (&config.data, side(config)?, read_side(config)?);
    let resize = Resize { size: read, filter: data.resize_filter, mode: data.resize_mode };
    let smaller = read > size || resize.mode == ResizeMode::ShorterSide;
    let plain = TransformConfig {
        resize: Some(resize),
        normalise: data.normalise,
        seed: config.train.seed,
        ..TransformConfig::default()
    };
    let padding = u32::try_from(data.crop_padding).unwrap_or(u32::MAX);
    let part = match data.crop_area[..] {
        [least, most] => Some(AreaCrop {
            size,
            area: (least, most),
            aspect: (3.0 / 4.0, 4.0 / 3.0),
            filter: data.resize_filter,
        }),
        _ => None,
    };
    let cut = part.is_none() && (padding > 0 || smaller);
    let for_training = TransformConfig {
        resize: part.is_none().then_some(resize),
        area_crop: part,
        random_crop: cut.then_some(RandomCrop { size, padding }),
        flip: if data.flip { 0.5 } else { 0.0 },
        rand_augment: rand_augment(data),
        color_jitter: color_jitter(data),
        erasing: erasing(data),
        ..plain.clone()
    };
    let for_testing = TransformConfig { center_crop: smaller.then_some(size), ..plain };
    Ok([for_training, for_testing])
}

/// The preparation of test images, for other programs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preparation {
    /// The side of the images that the network gets.
    pub size: usize,
    /// The resize, the first step.
    pub resize: Resize,
    /// True if the middle is cut out after the resize.
    pub crops: bool,
    /// The normalisation, the last step.
    pub normalise: Normalise,
}

impl Preparation {
    /// Returns the preparation of the test images of a configuration.
    ///
    /// # Errors
    /// If sizes or settings are not sound.
    pub fn of(config: &Config) -> Result<Self, DatasetError> {
        let ImageTransforms { testing, .. } = ImageTransforms::of(config)?;
        let TransformConfig { resize, center_crop, normalise, .. } = *testing.config();
        let filter = config.data.resize_filter;
        let resize = resize.unwrap_or(Resize::square(side(config)?, filter));
        Ok(Self { size: config.model.image_size, resize, crops: center_crop.is_some(), normalise })
    }
}

/// The operations of RandAugment on training images, if there are any. `Config::check` ensures the numbers of values.
fn rand_augment(data: &DataConfig) -> Option<RandAugment> {
    let byte =
        |at: usize| data.rand_augment_fill.get(at).map_or(0, |value| u8::try_from(*value).unwrap_or(u8::MAX));
    (data.rand_augment_ops > 0).then(|| RandAugment {
        interpolation: data.rand_augment_interpolation,
        fill: [0, 1, 2].map(byte),
        ..RandAugment::new(data.rand_augment_ops, data.rand_augment_magnitude)
    })
}

/// The random changes of colours of training images, if there are any.
fn color_jitter(data: &DataConfig) -> Option<ColorJitter> {
    match data.color_jitter[..] {
        [brightness, contrast, saturation, hue] => {
            Some(ColorJitter { brightness, contrast, saturation, hue })
        }
        _ => None,
    }
}

/// The random erasing of training images, if there is any.
fn erasing(data: &DataConfig) -> Option<RandomErasing> {
    let pair =
        |values: &[f64]| (values.first().copied().unwrap_or(0.0), values.get(1).copied().unwrap_or(1.0));
    (data.random_erasing > 0.0).then(|| RandomErasing {
        probability: data.random_erasing,
        area: pair(&data.random_erasing_area),
        aspect: pair(&data.random_erasing_aspect),
    })
}

/// The mixture of training images with each other, if there is any.
pub fn mixing(config: &Config) -> Option<Mixing> {
    let data = &config.data;
    let mixing = Mixing { mixup: data.mixup, cutmix: data.cutmix, seed: config.train.seed };
    (data.mixup > 0.0 || data.cutmix > 0.0).then_some(mixing)
}

/// Creates the preparation of generated images for the network of this configuration: they are cropped already, so they are resized and
/// normalised.
///
/// # Errors
/// If the size of the network's images is too large.
pub fn picture_transform(config: &Config) -> Result<Transform, DatasetError> {
    Ok(Transform::new(TransformConfig {
        resize: Some(Resize::square(side(config)?, config.data.resize_filter)),
        normalise: config.data.normalise,
        seed: config.train.seed,
        ..TransformConfig::default()
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The crops of training and testing.
    fn crops(resize: usize, mode: ResizeMode, crop_padding: usize) -> (Option<RandomCrop>, Option<u32>) {
        let mut config = Config::default();
        config.model.image_size = 64;
        (config.data.resize, config.data.resize_mode, config.data.crop_padding) =
            (resize, mode, crop_padding);
        let ImageTransforms { training, testing } = ImageTransforms::of(&config).expect("sound");
        assert_eq!(training.output_side(), Some(64));
        assert_eq!(testing.output_side(), Some(64));
        (training.config().random_crop, testing.config().center_crop)
    }

    #[test]
    fn larger_images_are_cropped() {
        let crop = |padding| Some(RandomCrop { size: 64, padding });
        assert_eq!(crops(0, ResizeMode::Square, 0), (None, None));
        assert_eq!(crops(0, ResizeMode::Square, 4), (crop(4), None));
        // StackGAN's 76 of 64.
        assert_eq!(crops(76, ResizeMode::Square, 0), (crop(0), Some(64)));
        assert_eq!(crops(0, ResizeMode::ShorterSide, 0), (crop(0), Some(64)));
    }

    #[test]
    fn parts_are_for_training_alone() {
        let mut config = Config::default();
        (config.model.image_size, config.data.resize, config.data.crop_area) = (64, 72, vec![0.08, 1.0]);
        let ImageTransforms { training, testing } = ImageTransforms::of(&config).expect("sound");
        assert_eq!(training.config().area_crop.map(|part| (part.size, part.area)), Some((64, (0.08, 1.0))));
        assert_eq!((training.config().resize, training.config().random_crop), (None, None));
        assert_eq!((testing.config().area_crop, testing.config().center_crop), (None, Some(64)));
    }
}
