//! Synthetic captioned scenes of two or three coloured shapes in spatial relations.
//!
//! An example: “a red star left of a blue ring and an orange square above the blue ring on a white background”. Scenes
//! are harder to generate from text than [`shapes`](crate::shapes): each colour belongs to one object, and the caption
//! leaves the absolute positions open. Each scene is a function of (seed, split, index). Nothing is stored, and an
//! index shows the same scene at every resolution. Training and test share no pair of objects in a relation; see
//! [`split`].

pub mod named;
pub mod relation;
pub mod spec;
pub mod split;
pub mod stated;

use crate::attribute::Attribute;
use crate::captioned_image::CaptionedImage;
use crate::dataset::{Split, check_index};
use crate::error::{DataError, Result};
use crate::image_catalog::{Header, ImageCatalog};
use crate::rng::{Purpose, below, rng_for};
use crate::shapes::render::render_shape;
use crate::shapes::{Background, Colour, Position, Shape, content_rng, pick, random_wording};
use image::{Rgb, RgbImage};
pub use named::NamedObject;
use rand_chacha::ChaCha8Rng;
pub use relation::Relation;
pub use spec::{Cells, SceneMatch, SceneObject, SceneSpec, StatedRelation};
pub use stated::StatedScene;
use std::ops::RangeInclusive;

/// The settings of [`ScenesDataset`].
#[derive(Debug, Clone, PartialEq)]
pub struct ScenesConfig {
    /// The split, which determines the allowed combinations.
    pub split: Split,
    /// The number of images.
    pub len: usize,
    /// Width and height of each image, in pixels. Shapes can be told apart from 32 on.
    pub resolution: u32,
    /// The seed of the content and the captions.
    pub seed: u64,
    /// The number of objects, each number with equal probability; within 2 to 3.
    pub objects: RangeInclusive<usize>,
    /// The share of training captions that tell the place of each object in place of relations, 0 to 1. A model learns from them which
    /// words go where; relations alone say too little about single images for that.
    pub placed: f64,
    /// The share of training captions that tell all places but the last object's, and its relation to one of the others. A model
    /// learns from them which object a relation refers to. Both shares together are at most 1.
    pub partly_placed: f64,
}

impl Default for ScenesConfig {
    /// 10,000 training images of two or three objects, 64 pixels square.
    fn default() -> Self {
        Self {
            split: Split::Train,
            len: 10_000,
            resolution: 64,
            seed: 0,
            objects: 2..=3,
            placed: 0.0,
            partly_placed: 0.0,
        }
    }
}

/// The kind of a caption is drawn in these parts of all captions.
const PARTS: usize = 1 << 20;

/// Images of scenes with captions. The label is the shape of the caption's first object; the attributes are those of
/// [`attributes`].
#[derive(Debug, Clone)]
pub struct ScenesDataset {
    config: ScenesConfig,
    header: Header,
}

impl ScenesDataset {
    /// Checks the settings.
    ///
    /// # Errors
    /// If the length or the resolution is 0, or a number of objects is not 2 or 3.
    pub fn new(config: ScenesConfig) -> Result<Self> {
        if config.len == 0 {
            return Err(DataError::config("scenes.len", "a dataset needs at least 1 image"));
        }
        if config.resolution == 0 {
            return Err(DataError::config("scenes.resolution", "an image needs at least 1 pixel"));
        }
        if config.objects.is_empty() || *config.objects.start() < 2 || *config.objects.end() > 3 {
            let reason = format!("{:?} objects; a scene has 2 or 3", config.objects);
            return Err(DataError::config("scenes.objects", reason));
        }
        let ScenesConfig { placed, partly_placed, .. } = config;
        for (name, share) in [
            ("scenes.placed", placed),
            ("scenes.partly_placed", partly_placed),
            ("scenes.placed and scenes.partly_placed", placed + partly_placed),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(DataError::config(name, format!("a share of {share} captions that tell places")));
            }
        }
        let header = Header {
            name: format!("scenes/{}", config.split),
            class_names: Shape::words(),
            attributes: attributes(),
            caption_seed: config.seed,
            ..Header::default()
        };
        Ok(Self { config, header })
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &ScenesConfig {
        &self.config
    }

    /// Returns the content of an image.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn spec(&self, index: usize) -> Result<SceneSpec> {
        check_index(&self.header.name, index, self.config.len)?;
        Ok(self.spec_of(index))
    }

    /// Returns the caption of an image in an epoch.
    fn caption_of(&self, spec: &SceneSpec, index: usize, epoch: u64) -> String {
        let ScenesConfig { split, seed, placed, partly_placed, .. } = self.config;
        let told = if split == Split::Train { placed + partly_placed } else { 0.0 };
        let drawn = below(&mut rng_for(seed, Purpose::PlacedCaption, epoch, index as u64), PARTS) as f64;
        match drawn / PARTS as f64 {
            drawn if drawn >= told => {
                spec.caption(random_wording(seed, epoch, index, SceneSpec::NUM_WORDINGS))
            }
            drawn if drawn < placed => spec.placed_caption(),
            _ => spec.partly_placed_caption(),
        }
    }

    fn spec_of(&self, index: usize) -> SceneSpec {
        let mut rng = content_rng(self.config.seed, self.config.split, index);
        random_spec(&mut rng, self.config.split, &self.config.objects)
    }
}

impl ImageCatalog for ScenesDataset {
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
        let caption = self.caption_of(&spec, index, epoch);
        let attributes = attribute_values(&spec);
        CaptionedImage { image: RgbImage::default(), label: spec.label(), caption, attributes }
    }
}

/// Renders a scene, `resolution` pixels wide and high.
#[must_use]
pub fn render(spec: &SceneSpec, resolution: u32) -> RgbImage {
    let mut image = RgbImage::from_pixel(resolution, resolution, Rgb(spec.background.rgb()));
    for object in &spec.objects {
        render_shape(&mut image, object.shape, object.colour, object.centre, object.radius);
    }
    image
}

/// Converts attribute values, of the dataset or predicted by a classifier, to the contents of the cells.
///
/// # Errors
/// If the number of values is not that of the attributes, or one is out of range. A cell with a shape but no colour, or
/// the reverse, counts as empty.
pub fn cells(values: &[u32]) -> Result<Cells> {
    let known = attributes();
    if values.len() != known.len() {
        let reason = format!("{} values for {} attributes", values.len(), known.len());
        return Err(DataError::config("scenes.attributes", reason));
    }
    if let Some((attribute, value)) =
        known.iter().zip(values).find(|(attribute, value)| **value as usize >= attribute.values.len())
    {
        let reason = format!("{value} is not a value of {}", attribute.name);
        return Err(DataError::config("scenes.attributes", reason));
    }
    let mut cells = Cells::default();
    for (cell, pair) in cells.iter_mut().zip(values[1..].chunks_exact(2)) {
        let shape = (pair[0] as usize).checked_sub(1).map(|at| Shape::ALL[at]);
        let colour = (pair[1] as usize).checked_sub(1).map(|at| Colour::ALL[at]);
        *cell = shape.zip(colour);
    }
    Ok(cells)
}

/// Returns `n` captions of held-out combinations and the scenes that they describe, for evaluating text-to-image
/// models. Scenes of two objects alternate with scenes of the most that `objects` allows, all of the test split and in
/// the plain wording. The result is the same for every call.
#[must_use]
pub fn heldout_scenes(n: usize, objects: &RangeInclusive<usize>) -> Vec<(String, SceneSpec)> {
    let one = |index: usize| {
        let mut rng = rng_for(0, Purpose::TestImage, 2, index as u64);
        let number = if index.is_multiple_of(2) { *objects.start() } else { *objects.end() };
        let spec = random_spec(&mut rng, Split::Test, &(number..=number));
        (spec.caption(0), spec)
    };
    (0..n).map(one).collect()
}

/// Returns the attributes of scenes: `background`, and for each cell of a 3×3 grid its shape and colour,
/// `shape_top_left`, `colour_top_left` to `colour_bottom_right`. Value 0 of a cell means “none”.
#[must_use]
pub fn attributes() -> Vec<Attribute> {
    let of_cell = |place: &Position| {
        let key = place.key();
        [
            Attribute::optional(format!("shape_{key}"), Shape::words()),
            Attribute::optional(format!("colour_{key}"), Colour::words()),
        ]
    };
    let background = Attribute::new("background", Background::words());
    std::iter::once(background).chain(Position::ALL.iter().flat_map(of_cell)).collect()
}

/// Returns the values of the [`attributes`] of a scene; [`cells`] is the inverse.
#[must_use]
pub fn attribute_values(spec: &SceneSpec) -> Vec<u32> {
    let of_cell = |cell: &Option<(Shape, Colour)>| {
        cell.map_or([0, 0], |(shape, colour)| [shape as u32 + 1, colour as u32 + 1])
    };
    let background = spec.background as u32;
    std::iter::once(background).chain(spec.cells().iter().flat_map(of_cell)).collect()
}

/// Generates scenes until the split allows one. One of seven pairs is held out, so both splits soon allow one.
fn random_spec(rng: &mut ChaCha8Rng, split: Split, objects: &RangeInclusive<usize>) -> SceneSpec {
    let number = objects.start() + below(rng, objects.end() - objects.start() + 1);
    loop {
        let background = pick(rng, Background::ALL);
        let objects: Vec<SceneObject> = (0..number).map(|_| random_object(rng)).collect();
        // The first object is related to the second, and each further one to one of these.
        let relations = (0..number).filter(|subject| *subject != 1).map(|subject| {
            let object = if subject == 0 { 1 } else { below(rng, 2) };
            let relation = Relation::between(objects[subject].place, objects[object].place)?;
            Some(StatedRelation { subject, relation, object })
        });
        let relations: Option<Vec<StatedRelation>> = relations.collect();
        let apart = |a: &SceneObject, b: &SceneObject| {
            a.place != b.place && (a.shape, a.colour) != (b.shape, b.colour)
        };
        let all_apart = (0..number).all(|a| (a + 1..number).all(|b| apart(&objects[a], &objects[b])));
        if let (true, Some(relations)) = (all_apart, relations) {
            let scene = SceneSpec { background, objects, relations };
            if split::allows(split, &scene) {
                return scene;
            }
        }
    }
}

/// The centre of the first cell and the distance to the next, as fractions of the image side.
const FIRST: f32 = 0.18;
const APART: f32 = 0.32;

/// Generates an object that stays in its cell: with the largest radius and shift, 0.15 and 0.01, it is within half the
/// distance of two cells, and within the image.
fn random_object(rng: &mut ChaCha8Rng) -> SceneObject {
    let (shape, colour) = (pick(rng, Shape::ALL), pick(rng, Colour::ALL));
    let place = pick(rng, Position::ALL);
    let mut part = |steps: usize| below(rng, steps + 1) as f32 / steps as f32;
    let radius = 0.12 + 0.03 * part(100);
    let mut shifted = |cell: usize| FIRST + APART * cell as f32 + 0.01 * (2.0 * part(100) - 1.0);
    let (column, row) = place.column_and_row();
    let centre = (shifted(column), shifted(row));
    SceneObject { shape, colour, place, centre, radius }
}

#[cfg(test)]
mod tests;
