//! Captioned pictures of coloured shapes, made by program.
//!
//! Each picture is a function of (seed, split, index): nothing is stored, the dataset has any length
//! and any resolution, and the same index shows the same scene at every resolution. Training and test
//! share no combination of shape, colour and background; see [`split`].

pub mod attributes;
pub mod render;
pub mod spec;
pub mod split;
pub(crate) mod vocabulary;

use crate::attribute::Attribute;
use crate::captioned_image::CaptionedImage;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::error::{DataError, Result};
use crate::rng::{Purpose, below, rng_for, shuffle};
use image::RgbImage;
use rand_chacha::ChaCha8Rng;
pub use render::render;
pub use spec::{Background, Colour, Object, Position, Shape, ShapeSpec, Size};
use split::split_of_object;
pub use split::{combinations, split_of};

/// How many objects a picture has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Objects {
    /// Always one.
    #[default]
    One,
    /// Always two.
    Two,
    /// One or two, with equal chances.
    OneOrTwo,
}

/// What [`ShapesDataset`] is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapesConfig {
    /// Which combinations of shape, colour and background it shows.
    pub split: Split,
    /// How many pictures it has.
    pub len: usize,
    /// Width and height of each, in pixels.
    pub resolution: u32,
    /// Fixes what they show.
    pub seed: u64,
    /// How many objects each has.
    pub objects: Objects,
}

impl Default for ShapesConfig {
    /// 10,000 training pictures of one object at 32 pixels.
    fn default() -> Self {
        Self { split: Split::Train, len: 10_000, resolution: 32, seed: 0, objects: Objects::One }
    }
}

/// Pictures of shapes with captions; the label is the (first) shape.
#[derive(Debug, Clone)]
pub struct ShapesDataset {
    config: ShapesConfig,
    name: String,
    class_names: Vec<String>,
    attributes: Vec<Attribute>,
}

impl ShapesDataset {
    /// Checks the configuration.
    ///
    /// # Errors
    /// If the length or the resolution is 0.
    pub fn new(config: ShapesConfig) -> Result<Self> {
        if config.len == 0 {
            return Err(DataError::config("shapes.len", "a dataset needs at least 1 picture"));
        }
        if config.resolution == 0 {
            return Err(DataError::config("shapes.resolution", "a picture needs at least 1 pixel"));
        }
        let name = format!("shapes/{}", config.split);
        let attributes = attributes::of(config.objects);
        Ok(Self { config, name, class_names: Shape::words(), attributes })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &ShapesConfig {
        &self.config
    }

    /// What a picture shows.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn spec(&self, index: usize) -> Result<ShapeSpec> {
        check_index(&self.name, index, self.config.len)?;
        let purpose = match self.config.split {
            Split::Train => Purpose::TrainImage,
            Split::Test => Purpose::TestImage,
        };
        let mut rng = rng_for(self.config.seed, purpose, 0, index as u64);
        let two = match self.config.objects {
            Objects::One => false,
            Objects::Two => true,
            Objects::OneOrTwo => below(&mut rng, 2) == 1,
        };
        Ok(draw_spec(&mut rng, self.config.split, two))
    }
}

impl ShapesDataset {
    /// A sample that shows this, without its picture.
    fn described(&self, spec: &ShapeSpec, index: usize, epoch: u64) -> CaptionedImage {
        let wording = below(
            &mut rng_for(self.config.seed, Purpose::Caption, epoch, index as u64),
            ShapeSpec::NUM_WORDINGS,
        );
        CaptionedImage {
            image: RgbImage::default(),
            label: spec.label(),
            caption: spec.caption(wording),
            attributes: attributes::values(spec, self.config.objects),
        }
    }
}

impl Dataset for ShapesDataset {
    type Item = CaptionedImage;

    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.config.len
    }

    fn get(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        let spec = self.spec(index)?;
        let image = render(&spec, self.config.resolution);
        Ok(CaptionedImage { image, ..self.described(&spec, index, epoch) })
    }

    fn without_pixels(&self, index: usize, epoch: u64) -> Result<CaptionedImage> {
        Ok(self.described(&self.spec(index)?, index, epoch))
    }

    fn has_fixed_pixels(&self) -> bool {
        true
    }
}

impl Labelled for ShapesDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        Ok(self.spec(index)?.label())
    }

    /// `shape`, `colour`, `size`, `place` and `background`. Where pictures may have two objects these are of the one that
    /// comes first from the top left, row by row, and `second_shape` to `second_place` of the other.
    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }
}

/// Captions of held-out combinations with what they should show, to judge a model that draws from text.
///
/// All held-out combinations come once, in a mixed order, before any comes again with another size
/// and position; always the plain wording and one object, and the same for every call.
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

/// One of several, with equal chances.
pub(crate) fn pick<T: Copy>(rng: &mut ChaCha8Rng, items: &[T]) -> T {
    items[below(rng, items.len())]
}

/// Draws whole scenes until one is allowed. Every split allows some scene of either kind on every
/// background (the tests of [`split`] make sure), so this ends.
fn draw_spec(rng: &mut ChaCha8Rng, split: Split, two: bool) -> ShapeSpec {
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
            // With this many pictures everything that a split may show is shown.
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
