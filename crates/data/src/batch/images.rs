//! Images as bytes, with what is still to be done to each: what a device prepares by itself, in a quarter of the bytes.

use crate::error::{DataError, Result};
use crate::transform::{Normalise, Placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Images of a batch before they are cut, mirrored and normalised.
///
/// The pixels are those of each sample in order, or, where somebody keeps the images of a whole set
/// ([`CachedImages`](crate::CachedImages)), those that are not kept yet.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageBytes {
    recipe: ImageRecipe,
    pixels: Vec<u8>,
}

/// All of [`ImageBytes`] but the pixels. It travels as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecipe {
    /// Height and width of the images as bytes.
    source: [usize; 2],
    /// Height and width of what they become.
    size: [usize; 2],
    /// Means and standard deviations as bits, since a decimal need not come back as the number that it was.
    normalise: [[u32; 3]; 2],
    /// Of each sample the number of its image and what is done to it.
    samples: Vec<(u32, Placement)>,
    /// The numbers of the images in the set whose pixels come along; `None` if image n is that of sample n.
    fresh: Option<Vec<u32>>,
}

impl ImageRecipe {
    /// What becomes of one image for each sample, in the order of the samples: images of `source`, height and width, become
    /// `size`.
    #[must_use]
    pub fn of_each(
        source: [usize; 2],
        size: [usize; 2],
        normalise: &Normalise,
        placements: Vec<Placement>,
    ) -> Self {
        let samples = (0..).zip(placements).collect();
        Self { source, size, normalise: bits(normalise), samples, fresh: None }
    }

    /// What becomes of images of a set, given by their numbers in it, of which those of the numbers `fresh` come along.
    #[must_use]
    pub fn of_set(
        source: [usize; 2],
        size: [usize; 2],
        normalise: &Normalise,
        samples: Vec<(u32, Placement)>,
        fresh: Vec<u32>,
    ) -> Self {
        Self { source, size, normalise: bits(normalise), samples, fresh: Some(fresh) }
    }

    /// Height and width of the images as bytes.
    #[must_use]
    pub fn source(&self) -> [usize; 2] {
        self.source
    }

    /// Height and width of what they become.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// What is done to bytes last.
    #[must_use]
    pub fn normalise(&self) -> Normalise {
        let [mean, std] = self.normalise.map(|numbers| numbers.map(f32::from_bits));
        Normalise { mean, std }
    }

    /// Of each sample the number of its image and what is done to it.
    #[must_use]
    pub fn samples(&self) -> &[(u32, Placement)] {
        &self.samples
    }

    /// The numbers of the images in a set whose pixels come along; `None` where image n is that of sample n.
    #[must_use]
    pub fn fresh(&self) -> Option<&[u32]> {
        self.fresh.as_deref()
    }

    /// That of some samples, which must be there. Images of each sample count anew from the first of them.
    #[must_use]
    pub fn narrow(&self, samples: &Range<usize>) -> Self {
        let mut chosen = self.samples[samples.clone()].to_vec();
        if self.fresh.is_none() {
            (0..).zip(&mut chosen).for_each(|(number, (image, _))| *image = number);
        }
        Self { samples: chosen, ..self.clone() }
    }

    /// How many images come along.
    fn images(&self) -> usize {
        self.fresh.as_ref().map_or(self.samples.len(), Vec::len)
    }

    /// Bytes of one image.
    fn each(&self) -> usize {
        3 * self.source[0] * self.source[1]
    }
}

fn bits(normalise: &Normalise) -> [[u32; 3]; 2] {
    [normalise.mean, normalise.std].map(|numbers| numbers.map(f32::to_bits))
}

impl ImageBytes {
    /// Images of a recipe; `pixels` are u8 [M, H, W, 3] of those that come along.
    ///
    /// # Errors
    /// If there is another number of pixels.
    pub fn new(recipe: ImageRecipe, pixels: Vec<u8>) -> Result<Self> {
        let expected = recipe.images() * recipe.each();
        if pixels.len() == expected {
            return Ok(Self { recipe, pixels });
        }
        let [height, width] = recipe.source;
        let reason = format!("{} bytes of pixels", pixels.len());
        Err(DataError::ArrayShape { shape: vec![recipe.images(), height, width, 3], reason })
    }

    /// All but the pixels.
    #[must_use]
    pub fn recipe(&self) -> &ImageRecipe {
        &self.recipe
    }

    /// The pixels that come along, u8 [M, H, W, 3].
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// How many samples it has.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.recipe.samples.len()
    }

    /// The recipe and the pixels, without a copy.
    #[must_use]
    pub fn into_parts(self) -> (ImageRecipe, Vec<u8>) {
        (self.recipe, self.pixels)
    }

    /// A copy of some samples, which must be there. Of a set those pixels come along that the samples need.
    pub(super) fn narrow(&self, samples: &Range<usize>) -> Self {
        let mut recipe = self.recipe.narrow(samples);
        let each = recipe.each();
        let Some(fresh) = &mut recipe.fresh else {
            let pixels = self.pixels[samples.start * each..samples.end * each].to_vec();
            return Self { recipe, pixels };
        };
        let needed: BTreeSet<u32> = recipe.samples.iter().map(|(image, _)| *image).collect();
        let mut pixels = Vec::new();
        let mut kept = Vec::new();
        for (at, image) in fresh.iter().enumerate().filter(|(_, image)| needed.contains(image)) {
            kept.push(*image);
            pixels.extend_from_slice(&self.pixels[at * each..(at + 1) * each]);
        }
        *fresh = kept;
        Self { recipe, pixels }
    }

    /// Puts the samples of other images after its own; false, and nothing happens, if they are prepared in another way.
    pub(super) fn append(&mut self, other: &Self) -> bool {
        let (own, more) = (&mut self.recipe, &other.recipe);
        if (own.source, own.size, own.normalise) != (more.source, more.size, more.normalise) {
            return false;
        }
        match (&mut own.fresh, &more.fresh) {
            (None, None) => {
                let before = own.samples.len() as u32;
                own.samples
                    .extend(more.samples.iter().map(|(image, placement)| (before + image, *placement)));
            }
            (Some(fresh), Some(further)) => {
                fresh.extend(further);
                own.samples.extend(&more.samples);
            }
            _ => return false,
        }
        self.pixels.extend_from_slice(&other.pixels);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(left: i32) -> Placement {
        Placement { left, top: 0, flipped: left % 2 == 0 }
    }

    #[test]
    fn parts_are_the_whole_again() {
        let recipe = ImageRecipe::of_each([1, 1], [1, 1], &Normalise::CLIP, (0..4).map(placement).collect());
        assert!(ImageBytes::new(recipe.clone(), vec![0; 11]).is_err());
        let whole = ImageBytes::new(recipe, (0..12).collect()).unwrap();
        let (mut first, second) = (whole.narrow(&(0..1)), whole.narrow(&(1..4)));
        assert_eq!(second.recipe().samples()[0], (0, placement(1)));
        assert_eq!(second.pixels(), (3..12).collect::<Vec<u8>>());
        assert!(first.append(&second));
        assert_eq!(first, whole);
        let text = serde_json::to_string(whole.recipe()).unwrap();
        assert_eq!(serde_json::from_str::<ImageRecipe>(&text).unwrap().normalise(), Normalise::CLIP);
    }

    #[test]
    fn of_a_set_only_new_pixels_come_along() {
        let samples = [7, 2, 9].map(|image| (image, placement(0))).to_vec();
        let recipe = ImageRecipe::of_set([1, 1], [1, 1], &Normalise::UNIT, samples, vec![7, 9]);
        let images = ImageBytes::new(recipe, (0..6).collect()).unwrap();
        let last = images.narrow(&(1..3));
        assert_eq!((last.recipe().fresh(), last.pixels()), (Some(&[9][..]), &[3, 4, 5][..]));
        assert_eq!(last.recipe().samples()[0].0, 2);
        let each = ImageRecipe::of_each([1, 1], [1, 1], &Normalise::UNIT, vec![placement(0)]);
        let mut each = ImageBytes::new(each, vec![0; 3]).unwrap();
        assert!(!each.append(&last) && each.samples() == 1);
    }
}
