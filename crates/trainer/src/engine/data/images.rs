//! The images that a configuration asks for: which datasets, which of their samples, prepared how.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use phalanx_data::cifar10::CLASS_NAMES;
use phalanx_data::scenes::{ScenesConfig, ScenesDataset, heldout_scenes};
use phalanx_data::shapes::{Objects, ShapesConfig, ShapesDataset, heldout_prompts};
use phalanx_data::transform::{RandomCrop, Resize, Transform, TransformConfig};
use phalanx_data::{
    Attribute, BatchSource, Collated, DataError, Exclusions, ImageCollation, ImageDataset, ImageFolder,
    Split, Subset, open_cifar10_seeded,
};

use crate::config::{Config, DataKind};
use crate::engine::TrainError;

/// A dataset of images, shared with the threads that read it.
type Images = Arc<ImageDataset>;

/// The configured images: the chosen ones for training, and those for testing.
pub(super) struct ConfiguredImages {
    train: Images,
    test: Images,
    for_training: Transform,
    for_testing: Transform,
    kind: DataKind,
    scene_objects: RangeInclusive<usize>,
}

impl ConfiguredImages {
    /// Finds the images; none is decoded yet.
    pub(super) fn open(config: &Config) -> Result<Self, TrainError> {
        let data = &config.data;
        let (train, test) = open_splits(config)?;
        let train = choose(train, data.per_class, data.limit, config.train.seed)?;
        let (for_training, for_testing) = transforms(config)?;
        Ok(Self {
            train,
            test,
            for_training,
            for_testing,
            kind: data.kind,
            scene_objects: scene_objects(config),
        })
    }

    /// Batches of training images.
    pub(super) fn train(&self) -> Arc<dyn BatchSource> {
        batches(&self.train, &self.for_training)
    }

    /// Batches of test images.
    pub(super) fn test(&self) -> Arc<dyn BatchSource> {
        batches(&self.test, &self.for_testing)
    }

    /// How many classes there are.
    pub(super) fn num_classes(&self) -> usize {
        self.train.class_names().len()
    }

    /// What the images are, in words.
    pub(super) fn describe(&self) -> String {
        format!("{} of {} classes", self.train.name(), self.num_classes())
    }

    /// `count` captions of the test split, each once if there are enough.
    pub(super) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        match self.kind {
            DataKind::Shapes => {
                return Ok(heldout_prompts(count).into_iter().map(|(text, _)| text).collect());
            }
            DataKind::Scenes => {
                let scenes = heldout_scenes(count, &self.scene_objects);
                return Ok(scenes.into_iter().map(|(text, _)| text).collect());
            }
            _ => {}
        }
        let mut captions: Vec<String> = Vec::new();
        // One of each class, then what comes.
        let mut seen = BTreeSet::new();
        for index in 0..self.test.len() {
            if captions.len() == count || seen.len() == self.num_classes() {
                break;
            }
            if seen.insert(self.test.label(index)?) {
                captions.push(self.test.get(index, 0)?.caption);
            }
        }
        let distinct = captions.len().max(1);
        for index in captions.len()..count {
            captions.push(captions[index % distinct].clone());
        }
        Ok(captions)
    }
}

/// Batches of images, with an array for each of their attributes.
fn batches(images: &Images, transform: &Transform) -> Arc<dyn BatchSource> {
    let collation = ImageCollation::new(transform.clone()).with_attributes(images.attributes());
    Arc::new(Collated::new(images.clone(), collation))
}

/// At most `per_class` images of each class and at most `limit` in all (0 = no limit), chosen by `seed`.
fn choose(all: Images, per_class: usize, limit: usize, seed: u64) -> Result<Images, DataError> {
    let mut chosen = all;
    if per_class > 0 {
        chosen = Arc::new(Subset::per_class(chosen, per_class, seed)?);
    }
    if limit > 0 && limit < chosen.len() {
        chosen = Arc::new(Subset::take(chosen, limit, seed)?);
    }
    Ok(chosen)
}

/// Opens both splits of the configured images.
fn open_splits(config: &Config) -> Result<(Images, Images), TrainError> {
    let data = &config.data;
    let excluded = Exclusions::default();
    match data.kind {
        DataKind::Shapes => {
            let shapes = |split, len| -> Result<Images, TrainError> {
                Ok(Arc::new(ShapesDataset::new(ShapesConfig {
                    split,
                    len,
                    resolution: side(config)?,
                    seed: config.train.seed,
                    objects: if data.objects == 2 { Objects::OneOrTwo } else { Objects::One },
                })?))
            };
            Ok((shapes(Split::Train, data.images)?, shapes(Split::Test, data.test_images)?))
        }
        DataKind::Scenes => {
            let scenes = |split, len| -> Result<Images, TrainError> {
                Ok(Arc::new(ScenesDataset::new(ScenesConfig {
                    split,
                    len,
                    resolution: side(config)?,
                    seed: config.train.seed,
                    objects: scene_objects(config),
                })?))
            };
            Ok((scenes(Split::Train, data.images)?, scenes(Split::Test, data.test_images)?))
        }
        DataKind::Cifar10 => {
            let open = |split| open_cifar10_seeded(&data.path, split, config.train.seed, &excluded);
            Ok((open(Split::Train)?, open(Split::Test)?))
        }
        DataKind::Folder => {
            let open = |split| ImageFolder::open_seeded(&data.path, split, config.train.seed, &excluded);
            Ok((Arc::new(open(Split::Train)?), Arc::new(open(Split::Test)?)))
        }
    }
}

/// How many classes the configured images have; CIFAR-10's need not be there for that.
pub(in crate::engine) fn num_classes(config: &Config) -> Result<usize, TrainError> {
    match config.data.kind {
        DataKind::Cifar10 => Ok(CLASS_NAMES.len()),
        DataKind::Folder if config.data.path.is_empty() => Err(TrainError::Setup(
            "the classes of data.kind = folder are those of its folders: name it by data.path, or by the option --data \
             folder=PATH"
                .to_owned(),
        )),
        DataKind::Shapes | DataKind::Scenes | DataKind::Folder => {
            Ok(open_splits(config)?.0.class_names().len())
        }
    }
}

/// What is known of every configured image beside its class: the names of the arrays of a batch that say it, and what their
/// numbers mean. Only embedded pictures have such attributes, so no folder is looked at.
pub(in crate::engine) fn attributes(config: &Config) -> Result<Vec<Attribute>, TrainError> {
    if !config.data.kind.is_embedded() {
        return Ok(Vec::new());
    }
    Ok(open_splits(config)?.0.attributes().to_vec())
}

/// How many objects scenes have.
fn scene_objects(config: &Config) -> RangeInclusive<usize> {
    if config.data.objects == 2 { 2..=2 } else { 2..=3 }
}

fn side(config: &Config) -> Result<u32, TrainError> {
    u32::try_from(config.model.image_size)
        .map_err(|_| TrainError::Setup(format!("model.image_size {} is too large", config.model.image_size)))
}

/// What happens to training and to test images.
/// What happens to a test image of a configuration before it is shown to the network.
pub(in crate::engine) fn test_transform(config: &Config) -> Result<Transform, TrainError> {
    Ok(transforms(config)?.1)
}

fn transforms(config: &Config) -> Result<(Transform, Transform), TrainError> {
    let (data, size) = (&config.data, side(config)?);
    let for_testing = TransformConfig {
        resize: Some(Resize::square(size, data.resize_filter)),
        normalise: data.normalise,
        seed: config.train.seed,
        ..TransformConfig::default()
    };
    let padding = u32::try_from(data.crop_padding).unwrap_or(u32::MAX);
    let for_training = TransformConfig {
        random_crop: (padding > 0).then_some(RandomCrop { size, padding }),
        flip: if data.flip { 0.5 } else { 0.0 },
        ..for_testing.clone()
    };
    Ok((Transform::new(for_training)?, Transform::new(for_testing)?))
}
