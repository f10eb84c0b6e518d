//! Images as bytes with the remaining steps of their transform, which a device can run. They take a quarter of the
//! memory of f32.

use crate::error::{DataError, Result};
use crate::transform::{Normalise, Placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// The images of a batch before the crop, the flip and the normalisation.
///
/// The pixels are those of each sample in order. If the consumer caches the images of a whole dataset
/// ([`CachedImages`](crate::CachedImages)), they are those of the images that it does not have.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageBytes {
    recipe: ImageRecipe,
    pixels: Vec<u8>,
}

/// An [`ImageBytes`] without its pixels. It is sent as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecipe {
    /// Height and width of the stored images.
    source: [usize; 2],
    /// Height and width of the results.
    size: [usize; 2],
    /// Means and standard deviations as bits, since decimals may not survive a round trip.
    normalise: [[u32; 3]; 2],
    /// The image number and the placement of each sample.
    samples: Vec<(u32, Placement)>,
    /// The numbers of the dataset's images whose pixels are included; `None` if image n belongs to sample n.
    fresh: Option<Vec<u32>>,
}

impl ImageRecipe {
    /// Makes a recipe with one image for each sample, in order. Images of height and width `source` become `size`.
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

    /// Makes a recipe for images of a dataset, given by their numbers. The pixels of `fresh` are included.
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

    /// Returns height and width of the stored images.
    #[must_use]
    pub fn source(&self) -> [usize; 2] {
        self.source
    }

    /// Returns height and width of the results.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Returns the normalisation, the last step.
    #[must_use]
    pub fn normalise(&self) -> Normalise {
        let [mean, std] = self.normalise.map(|numbers| numbers.map(f32::from_bits));
        Normalise { mean, std }
    }

    /// Returns the image number and the placement of each sample.
    #[must_use]
    pub fn samples(&self) -> &[(u32, Placement)] {
        &self.samples
    }

    /// Returns the numbers of the dataset's images whose pixels are included; `None` if image n belongs to sample n.
    #[must_use]
    pub fn fresh(&self) -> Option<&[u32]> {
        self.fresh.as_deref()
    }

    /// Returns the recipe of a range of samples, which must exist. Without a dataset, images are numbered anew from the
    /// first of them.
    #[must_use]
    pub fn narrow(&self, samples: &Range<usize>) -> Self {
        let mut chosen = self.samples[samples.clone()].to_vec();
        if self.fresh.is_none() {
            (0..).zip(&mut chosen).for_each(|(number, (image, _))| *image = number);
        }
        Self { samples: chosen, ..self.clone() }
    }

    /// Returns the number of images whose pixels are included.
    fn images(&self) -> usize {
        self.fresh.as_ref().map_or(self.samples.len(), Vec::len)
    }

    /// Returns the number of bytes of one image.
    fn each(&self) -> usize {
        3 * self.source[0] * self.source[1]
    }
}

fn bits(normalise: &Normalise) -> [[u32; 3]; 2] {
    [normalise.mean, normalise.std].map(|numbers| numbers.map(f32::to_bits))
}

impl ImageBytes {
    /// Combines a recipe with the included pixels, u8 [M, H, W, 3].
    ///
    /// # Errors
    /// If the number of pixels differs from the recipe's.
    pub fn new(recipe: ImageRecipe, pixels: Vec<u8>) -> Result<Self> {
        let expected = recipe.images() * recipe.each();
        if pixels.len() == expected {
            return Ok(Self { recipe, pixels });
        }
        let [height, width] = recipe.source;
        let reason = format!("{} bytes of pixels", pixels.len());
        Err(DataError::ArrayShape { shape: vec![recipe.images(), height, width, 3], reason })
    }

    /// Returns the recipe.
    #[must_use]
    pub fn recipe(&self) -> &ImageRecipe {
        &self.recipe
    }

    /// Returns the included pixels, u8 [M, H, W, 3].
    #[must_use]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the number of samples.
    #[must_use]
    pub fn samples(&self) -> usize {
        self.recipe.samples.len()
    }

    /// Splits it into recipe and pixels, without a copy.
    #[must_use]
    pub fn into_parts(self) -> (ImageRecipe, Vec<u8>) {
        (self.recipe, self.pixels)
    }

    /// Copies a range of samples, which must exist. Of a dataset's images, only the pixels that these samples need are
    /// included.
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

    /// Appends the samples of other images. Returns false, and changes nothing, if their preparation differs.
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
    fn parts_make_the_whole_again() {
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
    fn of_a_dataset_only_new_pixels_are_included() {
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
