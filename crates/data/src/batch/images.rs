//! Images as bytes with the remaining steps of their transform, which a device can run. They take a quarter of the
//! memory of f32.

use crate::error::{DataError, Result};
use crate::mix::Mixture;
use crate::transform::{Normalise, Patch, Placement};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
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
    /// The numbers of the dataset's images whose pixels are included; `None` if images are numbered by their pixels.
    fresh: Option<Vec<u32>>,
    /// The mixture with other images, after the normalisation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mix: Option<ImageMix>,
}

/// The mixture of each image of a batch with another one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageMix {
    /// The image number and the placement of each sample's partner.
    partners: Vec<(u32, Placement)>,
    /// The share of the sample itself, as bits.
    share: u32,
    patch: Option<Patch>,
}

impl ImageMix {
    /// Makes the mixture with a partner for each sample.
    pub(super) fn new(partners: Vec<(u32, Placement)>, mixture: &Mixture) -> Self {
        Self { partners, share: mixture.share.to_bits(), patch: mixture.patch }
    }

    /// Returns the image number and the placement of each sample's partner.
    #[must_use]
    pub fn partners(&self) -> &[(u32, Placement)] {
        &self.partners
    }

    /// Returns the mixture of all samples.
    #[must_use]
    pub fn mixture(&self) -> Mixture {
        Mixture { share: f32::from_bits(self.share), patch: self.patch }
    }
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
        Self { source, size, normalise: bits(normalise), samples, fresh: None, mix: None }
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
        Self { source, size, normalise: bits(normalise), samples, fresh: Some(fresh), mix: None }
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

    /// Returns the numbers of the dataset's images whose pixels are included; `None` if images are numbered by their
    /// pixels.
    #[must_use]
    pub fn fresh(&self) -> Option<&[u32]> {
        self.fresh.as_deref()
    }

    /// Returns the mixture of the samples with other images.
    #[must_use]
    pub fn mix(&self) -> Option<&ImageMix> {
        self.mix.as_ref()
    }

    /// Returns the recipe of a range of samples, which must exist, and the images that it needs. Without a dataset, these
    /// have new numbers in this order: those of the samples, then further ones of partners.
    #[must_use]
    pub fn narrow(&self, samples: &Range<usize>) -> (Self, Vec<u32>) {
        let mut chosen = self.samples[samples.clone()].to_vec();
        let mut mix = self.mix.clone();
        if let Some(mix) = &mut mix {
            mix.partners = mix.partners[samples.clone()].to_vec();
        }
        let mut needed = Vec::with_capacity(chosen.len());
        let mut numbers = BTreeMap::new();
        let partners = mix.iter_mut().flat_map(|mix| &mut mix.partners);
        for (image, _) in chosen.iter_mut().chain(partners) {
            let number = *numbers.entry(*image).or_insert(needed.len() as u32);
            if number as usize == needed.len() {
                needed.push(*image);
            }
            if self.fresh.is_none() {
                *image = number;
            }
        }
        (Self { samples: chosen, mix, ..self.clone() }, needed)
    }

    /// Returns the number of images whose pixels are included.
    fn images(&self) -> usize {
        let partners = self.mix.iter().flat_map(|mix| &mix.partners);
        let largest = self.samples.iter().chain(partners).map(|(image, _)| *image as usize + 1).max();
        self.fresh.as_ref().map_or(largest.unwrap_or(0), Vec::len)
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

    /// Mixes each sample with a partner.
    pub(super) fn set_mix(&mut self, mix: ImageMix) {
        self.recipe.mix = Some(mix);
    }

    /// Drops the samples from `samples` on, but not their pixels, which others may be mixed with.
    pub(super) fn truncate(&mut self, samples: usize) {
        self.recipe.samples.truncate(samples);
    }

    /// Copies a range of samples, which must exist. Only the included pixels that these samples need are copied.
    pub(super) fn narrow(&self, samples: &Range<usize>) -> Self {
        let (mut recipe, needed) = self.recipe.narrow(samples);
        let each = recipe.each();
        let mut pixels = Vec::new();
        let mut add = |at: usize| pixels.extend_from_slice(&self.pixels[at * each..(at + 1) * each]);
        match &mut recipe.fresh {
            None => needed.iter().for_each(|image| add(*image as usize)),
            Some(fresh) => {
                let needed: BTreeSet<u32> = needed.into_iter().collect();
                let places = fresh.iter().enumerate().filter(|(_, image)| needed.contains(image));
                places.for_each(|(at, _)| add(at));
                fresh.retain(|image| needed.contains(image));
            }
        }
        Self { recipe, pixels }
    }

    /// Appends the samples of other images. Returns false, and changes nothing, if their preparation differs.
    pub(super) fn append(&mut self, other: &Self) -> bool {
        let before = self.recipe.images() as u32;
        let (own, more) = (&mut self.recipe, &other.recipe);
        let how = |recipe: &ImageRecipe| {
            let mixture = recipe.mix.as_ref().map(|mix| (mix.share, mix.patch));
            (recipe.source, recipe.size, recipe.normalise, recipe.fresh.is_some(), mixture)
        };
        if how(own) != how(more) {
            return false;
        }
        let shift = if own.fresh.is_some() { 0 } else { before };
        let shifted = |(image, placement): &(u32, Placement)| (shift + image, *placement);
        own.samples.extend(more.samples.iter().map(shifted));
        if let (Some(own), Some(more)) = (&mut own.mix, &more.mix) {
            own.partners.extend(more.partners.iter().map(shifted));
        }
        if let (Some(own), Some(more)) = (&mut own.fresh, &more.fresh) {
            own.extend(more);
        }
        self.pixels.extend_from_slice(&other.pixels);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(left: i32) -> Placement {
        Placement { left, top: 0, flipped: left % 2 == 0, erased: None }
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
    fn parts_of_mixed_samples_have_the_pixels_of_their_partners() {
        // Samples 0 and 1 are partners; 2 has one without a sample of its own.
        let placements = (0..4).map(placement).collect();
        let recipe = ImageRecipe::of_each([1, 1], [1, 1], &Normalise::UNIT, placements);
        let mut whole = ImageBytes::new(recipe, (0..12).collect()).unwrap();
        let all = whole.recipe().samples().to_vec();
        whole.truncate(3);
        let mixture = Mixture { share: 0.25, patch: None };
        whole.set_mix(ImageMix::new(vec![all[1], all[0], all[3]], &mixture));
        let text = serde_json::to_string(whole.recipe()).unwrap();
        let again = ImageBytes::new(serde_json::from_str(&text).unwrap(), whole.pixels().to_vec()).unwrap();
        assert_eq!((&again, again.recipe().mix().unwrap().mixture()), (&whole, mixture));
        let last = whole.narrow(&(1..3));
        let numbers = |samples: &[(u32, Placement)]| {
            samples.iter().map(|(image, placement)| (*image, placement.left)).collect::<Vec<_>>()
        };
        assert_eq!(last.pixels(), [3, 4, 5, 6, 7, 8, 0, 1, 2, 9, 10, 11]);
        assert_eq!(numbers(last.recipe().samples()), [(0, 1), (1, 2)]);
        assert_eq!(numbers(last.recipe().mix().unwrap().partners()), [(2, 0), (3, 3)]);
        let (mut first, second) = (whole.narrow(&(0..2)), whole.narrow(&(2..3)));
        assert_eq!(first.pixels().len(), 6);
        assert!(first.append(&second));
        assert_eq!(first, whole);
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
