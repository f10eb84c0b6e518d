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
        check_classes(
            [&train, &test].map(|images| SplitClasses { name: images.name(), classes: images.class_names() }),
        )?;
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

/// The classes of a split, in the order of their labels.
struct SplitClasses<'a> {
    name: &'a str,
    classes: &'a [String],
}

/// Checks that a label means the same class in both splits. The test split may lack the last classes.
fn check_classes([train, test]: [SplitClasses<'_>; 2]) -> Result<(), TrainError> {
    let differ = |problem: String| {
        let text = format!(
            "the classes of the test split ({}) are not those of the training split ({})",
            test.name, train.name
        );
        Err(TrainError::Setup(format!("{text}: {problem}; a label must mean the same class in both")))
    };
    if let Some(label) =
        (0..train.classes.len().min(test.classes.len())).find(|at| train.classes[*at] != test.classes[*at])
    {
        return differ(format!(
            "label {label} is `{}` for testing and `{}` for training",
            test.classes[label], train.classes[label]
        ));
    }
    match test.classes.get(train.classes.len()) {
        Some(further) if !train.classes.is_empty() => differ(format!(
            "{} classes for testing and {} for training; `{further}` is not trained",
            test.classes.len(),
            train.classes.len()
        )),
        _ => Ok(()),
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
    fn a_label_means_the_same_class_in_both_splits() {
        let check = |train: &[&str], test: &[&str]| {
            let [train, test] =
                [train, test].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            let split = |name, classes| SplitClasses { name, classes };
            check_classes([split("x/train", &train), split("x/test", &test)])
                .map_err(|error| error.to_string())
        };
        for (train, test) in
            [(&["a", "b"][..], &["a", "b"][..]), (&["a", "b"], &["a"]), (&[], &[]), (&["a"], &[])]
        {
            assert_eq!(check(train, test), Ok(()), "{train:?} {test:?}");
        }
        let swapped = check(&["a", "b", "c"], &["b", "a", "c"]).expect_err("another order");
        assert!(swapped.contains("x/test") && swapped.contains("x/train"), "{swapped}");
        assert!(swapped.contains("label 0 is `b` for testing and `a` for training"), "{swapped}");
        let more = check(&["a"], &["a", "b"]).expect_err("an unknown class");
        assert!(more.contains("2 classes for testing and 1 for training; `b` is not trained"), "{more}");
    }

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
