//! The mixture of the samples of a batch with each other.

use super::images::ImageMix;
use super::{Batch, BatchArray};
use crate::error::{DataError, Result};
use crate::mix::{LABEL_SHARES, Mixture, PARTNER_LABELS};

/// The array of images, normalised numbers or bytes.
const IMAGES: &str = "images";
/// The array of classes.
const LABELS: &str = "labels";

impl Batch {
    /// Returns height and width of its images after preparation.
    ///
    /// # Errors
    /// If the batch has no images [N, C, H, W] or bytes of the name `images`.
    pub(crate) fn image_size(&self) -> Result<[usize; 2]> {
        if let Ok(images) = self.images(IMAGES) {
            return Ok(images.recipe().size());
        }
        match self.array(IMAGES)?.shape() {
            &[_, _, height, width] => Ok([height, width]),
            shape => {
                Err(DataError::ArrayShape { shape: shape.to_vec(), reason: "images are [N, C, H, W]".into() })
            }
        }
    }

    /// Mixes the first samples of the batch, as many as there are partners, each with the sample at its partner's place,
    /// and drops the others. Adds the arrays [`PARTNER_LABELS`] and [`LABEL_SHARES`].
    ///
    /// # Errors
    /// If the batch has no f32 `images` [N, C, H, W] or bytes, or no u32 `labels` `[N]`.
    pub(crate) fn mixed(mut self, partners: &[usize], mixture: &Mixture) -> Result<Self> {
        let samples = partners.len();
        let labels = self.values::<u32>(LABELS)?;
        let of_partners: Vec<u32> = partners.iter().map(|partner| labels[*partner]).collect();
        let [height, width] = self.image_size()?;
        let mut mix = None;
        if let Ok(images) = self.images(IMAGES) {
            let all = images.recipe().samples();
            let partners = partners.iter().map(|partner| all[*partner]).collect();
            mix = Some(ImageMix::new(partners, mixture));
        } else if let Some((_, array)) = self.arrays.iter_mut().find(|(name, _)| name == IMAGES) {
            let each = array.shape()[1..].iter().product();
            let numbers = numbers_of(array)?;
            mix_numbers(numbers, (each, [height, width]), partners, mixture);
        }
        self.truncate(samples);
        if let (Some(mix), Some((_, images))) = (mix, self.images.iter_mut().find(|(name, _)| name == IMAGES))
        {
            images.set_mix(mix);
        }
        self.with(PARTNER_LABELS, [samples], of_partners)?.with(
            LABEL_SHARES,
            [samples],
            vec![mixture.share; samples],
        )
    }

    /// Drops the samples from `samples` on, but not the pixels of images as bytes.
    fn truncate(&mut self, samples: usize) {
        self.arrays.iter_mut().for_each(|(_, array)| array.truncate(samples));
        self.texts.iter_mut().for_each(|(_, texts)| texts.truncate(samples));
        self.images.iter_mut().for_each(|(_, images)| images.truncate(samples));
        self.weights.truncate(samples);
    }
}

fn numbers_of(array: &mut BatchArray) -> Result<&mut [f32]> {
    let found = array.element_type();
    array.values_mut::<f32>().ok_or_else(|| {
        let reason = format!("its elements are {found}, and mixed images are f32");
        DataError::Batch { name: IMAGES.to_owned(), reason }
    })
}

/// Mixes normalised images of `each` numbers.
fn mix_numbers(
    numbers: &mut [f32],
    (each, [height, width]): (usize, [usize; 2]),
    partners: &[usize],
    mixture: &Mixture,
) {
    for (own, partner) in partners.iter().copied().enumerate().filter(|(own, partner)| own != partner) {
        let is_mutual = partner < partners.len();
        if is_mutual && partner < own {
            // Both were mixed when the first of them was.
            continue;
        }
        let (first, second) = (own.min(partner), own.max(partner));
        let (before, after) = numbers.split_at_mut(second * each);
        let (first, second) = (&mut before[first * each..][..each], &mut after[..each]);
        let (own, other) = if own < partner { (first, second) } else { (second, first) };
        match mixture.patch {
            None => blend(own, other, mixture.share, is_mutual),
            Some(patch) => {
                let mut of_other = Vec::new();
                patch.rows_of(other, (width, height), |row| of_other.extend_from_slice(row));
                let mut from = of_other.chunks_exact((patch.width as usize).max(1));
                let mut of_own = Vec::new();
                patch.rows_of(own, (width, height), |row| {
                    of_own.extend_from_slice(row);
                    row.copy_from_slice(from.next().unwrap_or_default());
                });
                let mut from = of_own.chunks_exact((patch.width as usize).max(1));
                if is_mutual {
                    patch.rows_of(other, (width, height), |row| {
                        row.copy_from_slice(from.next().unwrap_or_default());
                    });
                }
            }
        }
    }
}

/// Computes own ← share·own + (1 − share)·other, and the same for `other` if `is_mutual`.
fn blend(own: &mut [f32], other: &mut [f32], share: f32, is_mutual: bool) {
    let rest = 1.0 - share;
    for (own, other) in own.iter_mut().zip(other) {
        let (a, b) = (*own, *other);
        *own = share * a + rest * b;
        if is_mutual {
            *other = share * b + rest * a;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::Patch;

    /// Images of 1 × 2 × 2 numbers that are all 10^sample, with labels from 5.
    fn batch(samples: usize) -> Batch {
        let numbers = (0..samples).flat_map(|sample| [10_f32.powi(sample as i32); 4]).collect::<Vec<_>>();
        let labels = (5..).take(samples).collect::<Vec<u32>>();
        Batch::new(samples)
            .with("images", [samples, 1, 2, 2], numbers)
            .and_then(|batch| batch.with("labels", [samples], labels))
            .unwrap()
    }

    #[test]
    fn pairs_are_mixed_both_ways_and_others_one_way() {
        // The last sample is only the partner of the third.
        let mixture = Mixture { share: 0.75, patch: None };
        let mixed = batch(4).mixed(&[1, 0, 3], &mixture).unwrap();
        assert_eq!(mixed.values::<f32>("images").unwrap()[..5], [3.25, 3.25, 3.25, 3.25, 7.75]);
        assert_eq!(mixed.values::<f32>("images").unwrap()[8..], [325.0; 4]);
        assert_eq!(mixed.values::<u32>("labels").unwrap(), [5, 6, 7]);
        assert_eq!(mixed.values::<u32>(PARTNER_LABELS).unwrap(), [6, 5, 8]);
        assert_eq!(mixed.values::<f32>(LABEL_SHARES).unwrap(), [0.75; 3]);
        // A partner before: the second sample of another rank's pair comes first there.
        let alone = batch(2).mixed(&[1], &mixture).unwrap();
        assert_eq!(alone.values::<f32>("images").unwrap(), [3.25; 4]);
        let own = batch(1).mixed(&[0], &mixture).unwrap();
        assert_eq!(own.values::<f32>("images").unwrap(), [1.0; 4]);
    }

    #[test]
    fn patches_are_exchanged() {
        let patch = Patch { left: 1, top: 0, width: 1, height: 2 };
        let mixture = Mixture { share: 0.5, patch: Some(patch) };
        let mixed = batch(4).mixed(&[1, 0, 3], &mixture).unwrap();
        let expected = [1.0, 10.0, 1.0, 10.0, 10.0, 1.0, 10.0, 1.0, 100.0, 1000.0, 100.0, 1000.0];
        assert_eq!(mixed.values::<f32>("images").unwrap(), expected);
        let nothing = Mixture { share: 1.0, patch: Some(Patch { width: 0, ..patch }) };
        assert_eq!(
            batch(2).mixed(&[1, 0], &nothing).unwrap().values::<f32>("images").unwrap()[..4],
            [1.0; 4]
        );
        assert!(Batch::new(1).mixed(&[0], &nothing).is_err());
    }
}
