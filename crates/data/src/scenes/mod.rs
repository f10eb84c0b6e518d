//! Captioned scenes of two or three coloured shapes that lie to each other in a told way, made by program.
//!
//! “a red star left of a blue ring and an orange square above the blue ring on a white background”: harder to draw from text
//! than [`shapes`](crate::shapes), since a colour belongs to one object and not to the other, and since the caption leaves
//! open where in the picture the objects lie. Each scene is a function of (seed, split, index): nothing is stored, and
//! an index shows one scene at every resolution. Training and test share no pair of objects in a relation; see [`split`].

pub mod relation;
pub mod spec;
pub mod split;

use crate::attribute::Attribute;
use crate::captioned_image::CaptionedImage;
use crate::dataset::{Dataset, Labelled, Split, check_index};
use crate::error::{DataError, Result};
use crate::rng::{Purpose, below, rng_for};
use crate::shapes::render::paint;
use crate::shapes::{Background, Colour, Position, Shape, pick};
use image::{Rgb, RgbImage};
use rand_chacha::ChaCha8Rng;
pub use relation::Relation;
pub use spec::{Cells, SceneObject, SceneSpec, Shown, Stated};
use std::ops::RangeInclusive;

/// What [`ScenesDataset`] is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScenesConfig {
    /// Which combinations it shows.
    pub split: Split,
    /// How many pictures it has.
    pub len: usize,
    /// Width and height of each, in pixels. From 32 on shapes can be told from each other.
    pub resolution: u32,
    /// Fixes what they show.
    pub seed: u64,
    /// How many objects each has, each number with equal chances; within 2 to 3.
    pub objects: RangeInclusive<usize>,
}

impl Default for ScenesConfig {
    /// 10,000 training pictures of two or three objects at 64 pixels.
    fn default() -> Self {
        Self { split: Split::Train, len: 10_000, resolution: 64, seed: 0, objects: 2..=3 }
    }
}

/// Pictures of scenes with captions; the label is the shape of the first object of the caption.
#[derive(Debug, Clone)]
pub struct ScenesDataset {
    config: ScenesConfig,
    name: String,
    class_names: Vec<String>,
    attributes: Vec<Attribute>,
}

impl ScenesDataset {
    /// Checks the configuration.
    ///
    /// # Errors
    /// If the length or the resolution is 0, or a number of objects is not 2 or 3.
    pub fn new(config: ScenesConfig) -> Result<Self> {
        if config.len == 0 {
            return Err(DataError::config("scenes.len", "a dataset needs at least 1 picture"));
        }
        if config.resolution == 0 {
            return Err(DataError::config("scenes.resolution", "a picture needs at least 1 pixel"));
        }
        if config.objects.is_empty() || *config.objects.start() < 2 || *config.objects.end() > 3 {
            let reason = format!("{:?} objects; a scene has 2 or 3", config.objects);
            return Err(DataError::config("scenes.objects", reason));
        }
        let name = format!("scenes/{}", config.split);
        Ok(Self { config, name, class_names: Shape::words(), attributes: attributes() })
    }

    /// What it was made from.
    #[must_use]
    pub fn config(&self) -> &ScenesConfig {
        &self.config
    }

    /// What a picture shows.
    ///
    /// # Errors
    /// If `index` is not below the length.
    pub fn spec(&self, index: usize) -> Result<SceneSpec> {
        check_index(&self.name, index, self.config.len)?;
        let purpose = match self.config.split {
            Split::Train => Purpose::TrainImage,
            Split::Test => Purpose::TestImage,
        };
        let mut rng = rng_for(self.config.seed, purpose, 0, index as u64);
        Ok(draw_spec(&mut rng, self.config.split, &self.config.objects))
    }
}

impl ScenesDataset {
    /// A sample that shows this, without its picture.
    fn described(&self, spec: &SceneSpec, index: usize, epoch: u64) -> CaptionedImage {
        let mut rng = rng_for(self.config.seed, Purpose::Caption, epoch, index as u64);
        let caption = spec.caption(below(&mut rng, SceneSpec::NUM_WORDINGS));
        let attributes = attribute_values(spec);
        CaptionedImage { image: RgbImage::default(), label: spec.label(), caption, attributes }
    }
}

impl Dataset for ScenesDataset {
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

impl Labelled for ScenesDataset {
    fn class_names(&self) -> &[String] {
        &self.class_names
    }

    fn label(&self, index: usize) -> Result<u32> {
        Ok(self.spec(index)?.label())
    }

    /// `background`, and for each cell of a grid of three by three what lies there, `shape_top_left`, `colour_top_left` to
    /// `colour_bottom_right`, of which the first value is “none”; [`cells`] reads them.
    fn attributes(&self) -> &[Attribute] {
        &self.attributes
    }
}

/// Draws the picture, `resolution` pixels wide and high.
#[must_use]
pub fn render(spec: &SceneSpec, resolution: u32) -> RgbImage {
    let mut image = RgbImage::from_pixel(resolution, resolution, Rgb(spec.background.rgb()));
    for object in &spec.objects {
        paint(&mut image, object.shape, object.colour, object.centre, object.radius);
    }
    image
}

/// What the cells show by the values of a scene's attributes, those of the dataset or those that a classifier gives.
///
/// # Errors
/// If there are not as many values as attributes, or one is not a value of its attribute. A cell with a shape and no colour,
/// or the other way round, counts as empty.
pub fn cells(values: &[u32]) -> Result<Cells> {
    let known = attributes();
    if values.len() != known.len() {
        let reason = format!("{} values for {} attributes", values.len(), known.len());
        return Err(DataError::config("scenes.attributes", reason));
    }
    if let Some((attribute, value)) =
        known.iter().zip(values).find(|(attribute, value)| **value as usize >= attribute.values.len())
    {
        let reason = format!("{value} is no value of {}", attribute.name);
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

/// Captions of held-out combinations with what they should show, to judge a model that draws from text: scenes of the test
/// split with two objects, then one with the most that `objects` allows, in turn, in the plain wording, and the same for
/// every call.
#[must_use]
pub fn heldout_scenes(n: usize, objects: &RangeInclusive<usize>) -> Vec<(String, SceneSpec)> {
    let one = |index: usize| {
        let mut rng = rng_for(0, Purpose::TestImage, 2, index as u64);
        let number = if index.is_multiple_of(2) { *objects.start() } else { *objects.end() };
        let spec = draw_spec(&mut rng, Split::Test, &(number..=number));
        (spec.caption(0), spec)
    };
    (0..n).map(one).collect()
}

/// What there is to know of a scene: `background`, and for each cell of a grid of three by three what lies there,
/// `shape_top_left`, `colour_top_left` to `colour_bottom_right`, of which the first value is “none”.
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

/// The values of a scene's [`attributes`]; [`cells`] reads them again.
#[must_use]
pub fn attribute_values(spec: &SceneSpec) -> Vec<u32> {
    let of_cell = |cell: &Option<(Shape, Colour)>| {
        cell.map_or([0, 0], |(shape, colour)| [shape as u32 + 1, colour as u32 + 1])
    };
    let background = spec.background as u32;
    std::iter::once(background).chain(spec.cells().iter().flat_map(of_cell)).collect()
}

/// Draws whole scenes until one is allowed. Held-out pairs are one of seven, so both splits allow some soon.
fn draw_spec(rng: &mut ChaCha8Rng, split: Split, objects: &RangeInclusive<usize>) -> SceneSpec {
    let number = objects.start() + below(rng, objects.end() - objects.start() + 1);
    loop {
        let background = pick(rng, Background::ALL);
        let objects: Vec<SceneObject> = (0..number).map(|_| draw_object(rng)).collect();
        // The first is told of the second, and each further one of one of these.
        let stated = (0..number).filter(|subject| *subject != 1).map(|subject| {
            let object = if subject == 0 { 1 } else { below(rng, 2) };
            let relation = Relation::between(objects[subject].place, objects[object].place)?;
            Some(Stated { subject, relation, object })
        });
        let stated: Option<Vec<Stated>> = stated.collect();
        let apart = |a: &SceneObject, b: &SceneObject| {
            a.place != b.place && (a.shape, a.colour) != (b.shape, b.colour)
        };
        let all_apart = (0..number).all(|a| (a + 1..number).all(|b| apart(&objects[a], &objects[b])));
        if let (true, Some(stated)) = (all_apart, stated) {
            let scene = SceneSpec { background, objects, stated };
            if split::allows(split, &scene) {
                return scene;
            }
        }
    }
}

/// The centre of the first cell, and the distance to the next, as parts of the picture's side.
const FIRST: f32 = 0.18;
const APART: f32 = 0.32;

/// Draws an object that keeps to its cell: with the largest radius and the largest shift, 0.15 and 0.01, it is within half the
/// distance of two cells, and within the picture.
fn draw_object(rng: &mut ChaCha8Rng) -> SceneObject {
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
