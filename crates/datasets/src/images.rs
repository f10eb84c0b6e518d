//! The images of a configuration: their selection, their preparation, and captions to generate by.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

use phalanx_data::dataset::sample_beyond;
use phalanx_data::scenes::heldout_scenes;
use phalanx_data::shapes::heldout_prompts;
use phalanx_data::transform::Transform;
use phalanx_data::{
    BatchSource, CollatedDataset, DamagedSamples, DataError, ImageCollation, ImageDataset, LabelledDataset,
    Subset,
};

use crate::error::DatasetError;
use crate::open::{Images, OpenedSplits, scene_objects};
use crate::transforms::ImageTransforms;
use phalanx_config::{Config, DataKind, OnDamage};

/// The images of a configuration: those chosen for training, and those for testing.
pub struct ConfiguredImages {
    train: Images,
    /// `None` if the data have no test split.
    test: Option<Images>,
    for_training: Transform,
    for_testing: Transform,
    kind: DataKind,
    scene_objects: RangeInclusive<usize>,
    damaged: SplitDamage,
    notes: Vec<String>,
}

/// The damaged images of each split, if others take their place.
#[derive(Debug, Default, Clone)]
pub struct SplitDamage {
    /// Damaged training images.
    pub train: Arc<DamagedSamples>,
    /// Damaged test images.
    pub test: Arc<DamagedSamples>,
    is_replaced: bool,
}

impl std::fmt::Debug for ConfiguredImages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfiguredImages").field("train", &self.train.name()).finish_non_exhaustive()
    }
}

impl ConfiguredImages {
    /// Opens the images without decoding them.
    ///
    /// # Errors
    /// If they cannot be opened, a label means another class in the test split, or settings of their preparation are not sound.
    pub fn open(config: &Config) -> Result<Self, DatasetError> {
        let data = &config.data;
        let OpenedSplits { train, test, notes } = OpenedSplits::open(config)?;
        if let Some(test) = &test {
            check_classes(train.as_ref(), test.as_ref())?;
        }
        let train = choose(train, data.per_class, data.limit, config.train.seed)?;
        let ImageTransforms { training: for_training, testing: for_testing } = ImageTransforms::of(config)?;
        let scene_objects = scene_objects(config);
        let damaged = SplitDamage { is_replaced: data.on_damage == OnDamage::Skip, ..SplitDamage::default() };
        Ok(Self { train, test, for_training, for_testing, kind: data.kind, scene_objects, damaged, notes })
    }

    /// Batches of training images.
    pub fn train(&self) -> Arc<dyn BatchSource> {
        self.batches(&self.train, &self.for_training, &self.damaged.train)
    }

    /// Batches of test images; `None` without a test split.
    pub fn test(&self) -> Option<Arc<dyn BatchSource>> {
        self.test.as_ref().map(|test| self.batches(test, &self.for_testing, &self.damaged.test))
    }

    /// Batches of the images that are compared with generated ones: test images, or training images without a test split.
    pub fn examples(&self) -> Arc<dyn BatchSource> {
        self.test().unwrap_or_else(|| self.batches(&self.train, &self.for_testing, &self.damaged.train))
    }

    /// Creates batches of images, with an array for each attribute.
    fn batches(
        &self,
        images: &Images,
        transform: &Transform,
        damaged: &Arc<DamagedSamples>,
    ) -> Arc<dyn BatchSource> {
        let collation = ImageCollation::new(transform.clone()).with_attributes(images.attributes());
        let batches = CollatedDataset::new(images.clone(), collation);
        match self.damaged.is_replaced {
            true => Arc::new(batches.with_substitutes(damaged.clone())),
            false => Arc::new(batches),
        }
    }

    /// The images of each split by its name.
    pub fn splits(&self) -> impl Iterator<Item = (&'static str, &Images)> {
        [("train", Some(&self.train)), ("test", self.test.as_ref())]
            .into_iter()
            .filter_map(|(name, images)| images.map(|images| (name, images)))
    }

    /// Facts about the files for the user.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The damaged images that were found up to now.
    pub fn damaged(&self) -> &SplitDamage {
        &self.damaged
    }

    /// The number of classes; 0 if images have none.
    pub fn num_classes(&self) -> usize {
        self.train.class_names().len()
    }

    /// Checks that labels mean the classes that a model was trained on.
    ///
    /// # Errors
    /// [`DatasetError::OtherClasses`] with the first difference.
    pub fn check_trained(&self, trained: &[String]) -> Result<(), DatasetError> {
        let own = self.train.class_names();
        if own.is_empty() {
            return Ok(());
        }
        match class_difference([trained, own]) {
            None => Ok(()),
            Some(problem) => {
                Err(DatasetError::OtherClasses { images: self.train.name().to_owned(), problem })
            }
        }
    }

    /// The names of the classes; none if images have none.
    pub fn class_names(&self) -> &[String] {
        self.train.class_names()
    }

    /// A description of the images.
    pub fn describe(&self) -> String {
        match self.num_classes() {
            0 => format!("{} with captions", self.train.name()),
            classes => format!("{} of {classes} classes", self.train.name()),
        }
    }

    /// Returns `count` captions of the test split, without repetition if there are enough.
    ///
    /// # Errors
    /// If captions cannot be read.
    pub fn test_captions(&self, count: usize) -> Result<Vec<String>, DatasetError> {
        let captions = match self.kind {
            DataKind::Shapes => heldout_prompts(count).into_iter().map(|(text, _)| text).collect(),
            DataKind::Scenes => {
                heldout_scenes(count, &self.scene_objects).into_iter().map(|(text, _)| text).collect()
            }
            // The captions of images, spread over the split.
            DataKind::Cub | DataKind::Coco | DataKind::Shards => {
                let images = self.test.as_ref().unwrap_or(&self.train);
                let len = images.len();
                let index = |number: usize| if count <= len { number * len / count } else { number % len };
                let caption = |number| Ok(images.without_pixels(index(number), 0)?.caption);
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
        let images = self.test.as_ref().unwrap_or(&self.train);
        for index in 0..images.len() {
            if captions.len() == count || seen.len() == self.num_classes() {
                break;
            }
            if seen.insert(images.label(index)?) {
                captions.push(images.without_pixels(index, 0)?.caption);
            }
        }
        let distinct = captions.len().max(1);
        for index in captions.len()..count {
            captions.push(captions[index % distinct].clone());
        }
        Ok(captions)
    }
}

/// Checks that a label means the same class in both splits. The test split may lack the last classes.
fn check_classes(train: &ImageDataset, test: &ImageDataset) -> Result<(), DatasetError> {
    let names = [train, test].map(LabelledDataset::class_names);
    let Some(problem) = class_difference(names) else { return Ok(()) };
    let split = |images: &ImageDataset| match images.classes_from() {
        Some(file) => format!("{}, named by {}", images.name(), file.display()),
        None => images.name().to_owned(),
    };
    // Labels that no file names are those of samples.
    let sample = match names[1].len() > names[0].len() && !names[0].is_empty() {
        true => sample_beyond(test, names[0].len())?,
        false => None,
    };
    let sample = sample.map_or_else(String::new, |path| format!(" (the first is {})", path.display()));
    Err(DatasetError::SplitClasses {
        test: split(test),
        train: split(train),
        problem: format!("{problem}{sample}"),
    })
}

/// Returns the first difference between the classes of both splits that changes the meaning of a label.
fn class_difference([train, test]: [&[String]; 2]) -> Option<String> {
    if let Some(label) = (0..train.len().min(test.len())).find(|at| train[*at] != test[*at]) {
        return Some(format!(
            "label {label} is `{}` for testing and `{}` for training",
            test[label], train[label]
        ));
    }
    match (train.len(), test.len()) {
        (0, _) => None,
        (_, 0) => Some("the test images have no classes".to_owned()),
        (of_train, of_test) if of_test > of_train => Some(format!(
            "{of_test} classes for testing and {of_train} for training; `{}` is not trained",
            test[of_train]
        )),
        _ => None,
    }
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
    use crate::open::attributes;

    #[test]
    fn a_label_means_the_same_class_in_both_splits() {
        let check = |train: &[&str], test: &[&str]| {
            let [train, test] =
                [train, test].map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
            class_difference([&train, &test])
        };
        for (train, test) in [(&["a", "b"][..], &["a", "b"][..]), (&["a", "b"], &["a"]), (&[], &[])] {
            assert_eq!(check(train, test), None, "{train:?} {test:?}");
        }
        let swapped = check(&["a", "b", "c"], &["b", "a", "c"]).expect("another order");
        assert_eq!(swapped, "label 0 is `b` for testing and `a` for training");
        let more = check(&["a"], &["a", "b"]).expect("an unknown class");
        assert_eq!(more, "2 classes for testing and 1 for training; `b` is not trained");
        let none = check(&["a"], &[]).expect("labels without a meaning");
        assert_eq!(none, "the test images have no classes");
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
            for (batches, len) in [(images.train(), 20), (images.test().expect("there"), 10)] {
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
