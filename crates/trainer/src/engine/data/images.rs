//! The images of a configuration: their selection, their preparation, and captions to generate by.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use phalanx_data::scenes::heldout_scenes;
use phalanx_data::shapes::heldout_prompts;
use phalanx_data::transform::Transform;
use phalanx_data::{BatchSource, CollatedDataset, DataError, ImageCollation, Subset};

use super::open::{Images, open_splits, scene_objects};
use super::transforms::transforms;
use crate::config::{Config, DataKind};
use crate::engine::TrainError;

/// The images of a configuration: those chosen for training, and those for testing.
pub(super) struct ConfiguredImages {
    train: Images,
    test: Images,
    for_training: Transform,
    for_testing: Transform,
    kind: DataKind,
    scene_objects: RangeInclusive<usize>,
}

impl ConfiguredImages {
    /// Opens the images without decoding them.
    pub(super) fn open(config: &Config) -> Result<Self, TrainError> {
        let data = &config.data;
        let (train, test) = open_splits(config)?;
        let train = choose(train, data.per_class, data.limit, config.train.seed)?;
        let (for_training, for_testing) = transforms(config)?;
        let scene_objects = scene_objects(config);
        Ok(Self { train, test, for_training, for_testing, kind: data.kind, scene_objects })
    }

    /// Batches of training images.
    pub(super) fn train(&self) -> Arc<dyn BatchSource> {
        batches(&self.train, &self.for_training)
    }

    /// Batches of test images.
    pub(super) fn test(&self) -> Arc<dyn BatchSource> {
        batches(&self.test, &self.for_testing)
    }

    /// The number of classes; 0 if images have none.
    pub(super) fn num_classes(&self) -> usize {
        self.train.class_names().len()
    }

    /// A description of the images.
    pub(super) fn describe(&self) -> String {
        match self.num_classes() {
            0 => format!("{} with captions", self.train.name()),
            classes => format!("{} of {classes} classes", self.train.name()),
        }
    }

    /// Returns `count` captions of the test split, without repetition if there are enough.
    pub(super) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        let captions = match self.kind {
            DataKind::Shapes => heldout_prompts(count).into_iter().map(|(text, _)| text).collect(),
            DataKind::Scenes => {
                heldout_scenes(count, &self.scene_objects).into_iter().map(|(text, _)| text).collect()
            }
            // The captions of images, spread over the split.
            DataKind::Cub | DataKind::Coco | DataKind::Shards => {
                let len = self.test.len();
                let index = |number: usize| if count <= len { number * len / count } else { number % len };
                let caption = |number| Ok(self.test.get(index(number), 0)?.caption);
                (0..count).map(caption).collect::<Result<_, DataError>>()?
            }
            DataKind::Cifar10 | DataKind::Folder | DataKind::Imagenet => self.captions_of_classes(count)?,
        };
        Ok(captions)
    }

    /// Returns a caption of each class, repeated up to `count`.
    fn captions_of_classes(&self, count: usize) -> Result<Vec<String>, DataError> {
        let mut captions: Vec<String> = Vec::new();
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

/// Creates batches of images, with an array for each attribute.
fn batches(images: &Images, transform: &Transform) -> Arc<dyn BatchSource> {
    let collation = ImageCollation::new(transform.clone()).with_attributes(images.attributes());
    Arc::new(CollatedDataset::new(images.clone(), collation))
}

/// Chooses at most `per_class` images of each class and at most `limit` in all (0 = no limit), by `seed`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::data::attributes;

    #[test]
    fn batches_of_embedded_images_have_attributes() {
        for (kind, names) in [
            (DataKind::Shapes, vec!["shape", "colour", "size", "place", "background"]),
            (DataKind::Scenes, vec!["background", "shape_top_left", "colour_top_left", "shape_top"]),
        ] {
            let mut config = Config::default();
            (config.data.kind, config.data.images, config.data.test_images) = (kind, 20, 10);
            let images = ConfiguredImages::open(&config).expect("sound");
            let known = attributes(&config).expect("embedded");
            assert_eq!(known.iter().map(|known| &known.name).take(names.len()).collect::<Vec<_>>(), names);
            for (batches, len) in [(images.train(), 20), (images.test(), 10)] {
                let indices: Vec<usize> = (0..len).collect();
                let batch = batches.batch(&indices, 0, &|| true).expect("sound");
                for known in &known {
                    let values = batch.values::<u32>(&known.name).expect("there");
                    assert!(
                        values.len() == len && values.iter().all(|at| (*at as usize) < known.values.len())
                    );
                }
                if kind == DataKind::Shapes {
                    // The class of an image of one shape is its shape.
                    assert_eq!(batch.values::<u32>("shape").ok(), batch.values::<u32>("labels").ok());
                }
            }
        }
    }
}
