//! Synthetic captioned images of coloured shapes.
//!
//! Each image is a function of (seed, split, index). Nothing is stored, any length and resolution is possible, and an
//! index shows the same content at every resolution. Training and test share no combination of shape, colour and
//! background; see [`split`].

pub mod attributes;
pub mod render;
pub mod spec;
pub mod split;
pub(crate) mod vocabulary;

use crate::captioned_image::CaptionedImage;
use crate::dataset::{Split, check_index};
use crate::error::{DataError, Result};
use crate::image_catalog::{Header, ImageCatalog};
use crate::rng::{Purpose, below, rng_for, shuffle};
use image::RgbImage;
use rand_chacha::ChaCha8Rng;
pub use render::render;
pub use spec::{Background, Colour, Object, Position, Shape, ShapeSpec, Size};
use split::split_of_object;
pub use split::{combinations, split_of};

/// The number of objects in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objects {
    /// Always one.
    #[default]
    One,
    /// Always two.
    Two,
    /// One or two, with equal probability.
    OneOrTwo,
}

/// The settings of [`ShapesDataset`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapesConfig {
    /// The split, which determines the allowed combinations of shape, colour and background.
    pub split: Split,
    /// The number of images.
    pub len: usize,
    /// Width and height of each image, in pixels.
    pub resolution: u32,
    /// The seed of the content and the captions.
    pub seed: u64,
    /// The number of objects in each image.
    pub objects: Objects,
}

impl Default for ShapesConfig {
    /// 10,000 training images of one object, 32 pixels square.
    fn default() -> Self {
        Self { split: Split::Train, len: 10_000, resolution: 32, seed: 0, objects: Objects::One }
    }
}

/// Images of shapes with captions. The label is the shape of the first object.
///
/// The attributes are `shape`, `colour`, `size`, `place` and `background`. Where images may have two objects, these
/// describe the object that comes first from the top left, row by row; `second_shape` to `second_place` describe the
/// other.
#[derive(Debug, Clone)]
pub struct ShapesDataset {
    config: ShapesConfig,
    header: Header,
}

impl ShapesDataset {
    /// Checks the settings.
    ///
    /// # Errors
    /// If the length or the resolution is 0.
    pub fn new(config: ShapesConfig) -> Result<Self> {
        if config.len == 0 {
            return Err(DataError::config("shapes.len", "a dataset needs at least 1 image"));
        }
        if config.resolution == 0 {
            return Err(DataError::config("shapes.resolution", "an image needs at least 1 pixel"));
        }
        let header = Header {
            name: format!("shapes/{}", config.split),
            class_names: Shape::words(),
            attributes: attributes::of(config.objects),
            caption_seed: config.seed,
            ..Header::default()
        };
        Ok(Self { config, header })
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &ShapesConfig {
        &self.config
    }

    /// Returns the content of an image.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn spec(&self, index: usize) -> Result<ShapeSpec> {
        check_index(&self.header.name, index, self.config.len)?;
        Ok(self.spec_of(index))
    }

    fn spec_of(&self, index: usize) -> ShapeSpec {
        let mut rng = content_rng(self.config.seed, self.config.split, index);
        let two = match self.config.objects {
            Objects::One => false,
            Objects::Two => true,
            Objects::OneOrTwo => below(&mut rng, 2) == 1,
        };
        random_spec(&mut rng, self.config.split, two)
    }
}

/// Returns the generator of the content of a synthetic image.
pub(crate) fn content_rng(seed: u64, split: Split, index: usize) -> ChaCha8Rng {
    let purpose = match split {
        Split::Train => Purpose::TrainImage,
        Split::Test => Purpose::TestImage,
    };
    rng_for(seed, purpose, 0, index as u64)
}

/// Chooses one of `wordings` captions of a synthetic image.
pub(crate) fn random_wording(seed: u64, epoch: u64, index: usize, wordings: usize) -> usize {
    below(&mut rng_for(seed, Purpose::Caption, epoch, index as u64), wordings)
}

impl ImageCatalog for ShapesDataset {
    fn header(&self) -> &Header {
        &self.header
    }

    fn count(&self) -> usize {
        self.config.len
    }

    fn label_of(&self, index: usize) -> u32 {
        self.spec_of(index).label()
    }

    fn pixels(&self, index: usize) -> Result<RgbImage> {
        Ok(render(&self.spec_of(index), self.config.resolution))
    }

    fn describe(&self, index: usize, epoch: u64) -> CaptionedImage {
        let spec = self.spec_of(index);
        let wording = random_wording(self.config.seed, epoch, index, ShapeSpec::NUM_WORDINGS);
        CaptionedImage {
            image: RgbImage::default(),
            label: spec.label(),
            caption: spec.caption(wording),
            attributes: attributes::values(&spec, self.config.objects),
        }
    }
}

/// Returns `n` captions of held-out combinations and the content that they describe, for evaluating text-to-image
/// models.
///
/// Every held-out combination comes once, in a shuffled order, before any comes again with another size and position.
/// The wording is always the plain one with one object. The result is the same for every call.
#[must_use]
pub fn heldout_prompts(n: usize) -> Vec<(String, ShapeSpec)> {
    let mut held_out = combinations(Split::Test);
    shuffle(&mut rng_for(0, Purpose::TestImage, 1, 0), &mut held_out);
    (0..n)
        .map(|index| {
            let (shape, colour, background) = held_out[index % held_out.len()];
            let mut rng = rng_for(0, Purpose::TestImage, 2, index as u64);
            let first = Object {
                shape,
                colour,
                size: pick(&mut rng, Size::ALL),
                position: pick(&mut rng, Position::ALL),
            };
            let spec = ShapeSpec { background, first, second: None };
            (spec.caption(0), spec)
        })
        .collect()
}

/// Picks one of several items, with equal probability.
pub(crate) fn pick<T: Copy>(rng: &mut ChaCha8Rng, items: &[T]) -> T {
    items[below(rng, items.len())]
}

/// Generates content until the split allows it. Every split allows some content of either kind on every background (the
/// tests of [`split`] check this), so the loop ends.
fn random_spec(rng: &mut ChaCha8Rng, split: Split, two: bool) -> ShapeSpec {
    loop {
        let background = pick(rng, Background::ALL);
        let mut object = || {
            let (shape, colour) = (pick(rng, Shape::ALL), pick(rng, Colour::ALL));
            Object { shape, colour, size: pick(rng, Size::ALL), position: pick(rng, Position::ALL) }
        };
        let first = object();
        let second = two.then(object);
        let spec = ShapeSpec { background, first, second };
        if spec.objects().all(|object| split_of_object(&object, background) == split)
            && second.is_none_or(|second| first.goes_with(&second))
        {
            return spec;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::{Dataset, LabelledDataset};
    use std::collections::BTreeSet;

    fn dataset(split: Split, objects: Objects, seed: u64) -> ShapesDataset {
        ShapesDataset::new(ShapesConfig { split, objects, seed, len: 3000, resolution: 32 }).unwrap()
    }

    fn specs(dataset: &ShapesDataset) -> Vec<ShapeSpec> {
        (0..dataset.len()).map(|index| dataset.spec(index).unwrap()).collect()
    }

    #[test]
    fn splits_share_no_combination() {
        for objects in [Objects::One, Objects::Two, Objects::OneOrTwo] {
            let seen = |split| -> BTreeSet<_> {
                let specs = specs(&dataset(split, objects, 3));
                specs
                    .iter()
                    .flat_map(|spec| spec.objects().map(|o| (o.shape, o.colour, spec.background)))
                    .collect()
            };
            let (train, test) = (seen(Split::Train), seen(Split::Test));
            assert!(train.is_disjoint(&test));
            // With this many images every allowed combination is shown.
            assert_eq!(train.len(), combinations(Split::Train).len());
            assert!(test.len() * 10 >= combinations(Split::Test).len() * 9, "{}", test.len());
        }
    }

    #[test]
    fn a_picture_depends_on_seed_and_index_only() {
        let (a, b) =
            (dataset(Split::Train, Objects::OneOrTwo, 1), dataset(Split::Train, Objects::OneOrTwo, 1));
        assert_eq!(specs(&a), specs(&b));
        assert_ne!(specs(&a), specs(&dataset(Split::Train, Objects::OneOrTwo, 2)));
        let (x, y) = (a.get(5, 0).unwrap(), b.get(5, 9).unwrap());
        assert_eq!(x.image, y.image);
        assert_eq!(x.label, a.label(5).unwrap());
        let captions: BTreeSet<_> = (0..40).map(|epoch| a.get(5, epoch).unwrap().caption).collect();
        assert_eq!(captions.len(), ShapeSpec::NUM_WORDINGS);
    }

    #[test]
    fn the_number_of_objects_is_the_one_asked_for() {
        let seconds =
            |objects| specs(&dataset(Split::Train, objects, 0)).iter().filter(|s| s.second.is_some()).count();
        assert_eq!(seconds(Objects::One), 0);
        assert_eq!(seconds(Objects::Two), 3000);
        assert!((1300..1700).contains(&seconds(Objects::OneOrTwo)));
    }

    #[test]
    fn prompts_are_held_out_and_different() {
        let number = combinations(Split::Test).len();
        let prompts = heldout_prompts(number);
        assert_eq!(prompts, heldout_prompts(number));
        assert!(prompts.iter().all(|(_, s)| split_of_object(&s.first, s.background) == Split::Test));
        assert_eq!(prompts.iter().map(|(text, _)| text).collect::<BTreeSet<_>>().len(), number);
        assert_eq!(heldout_prompts(number + 5).len(), number + 5);
    }

    #[test]
    fn bad_settings_and_indices_are_errors() {
        assert!(ShapesDataset::new(ShapesConfig { len: 0, ..Default::default() }).is_err());
        assert!(ShapesDataset::new(ShapesConfig { resolution: 0, ..Default::default() }).is_err());
        assert!(dataset(Split::Test, Objects::One, 0).get(3000, 0).is_err());
    }
}
