//! Random numbers keyed by their purpose.
//!
//! No generator is carried from one sample to the next: each use builds its own from (seed, purpose, epoch, index). So
//! a number depends on no thread, no number of ranks and no point of resumption.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// The purpose of random numbers. Streams of the same seed with different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The order of an epoch.
    Shuffle = 1,
    /// Crops and flips.
    Augment = 2,
    /// The wording of a caption.
    Caption = 3,
    /// The samples of a subset.
    Subset = 4,
    /// The content of a synthetic training image.
    TrainImage = 5,
    /// The content of a synthetic test image.
    TestImage = 6,
    /// The order in which chunks are read.
    ChunkOrder = 7,
    /// The sample in the place of a damaged one.
    Substitute = 8,
    /// The operations of RandAugment.
    RandAugment = 9,
    /// Random brightness, contrast, saturation and hue.
    ColorJitter = 10,
    /// Erased rectangles.
    Erase = 11,
    /// The mixture of the samples of a step.
    Mix = 12,
    /// The words of a synthetic training text.
    TrainSentences = 13,
    /// The words of a synthetic test text.
    TestSentences = 14,
    /// A synthetic training sentence and its class.
    TrainJudgement = 15,
    /// A synthetic test sentence and its class.
    TestJudgement = 16,
    /// The masked tokens of a text.
    Masking = 17,
    /// A pair of synthetic training sentences.
    TrainPair = 18,
    /// A pair of synthetic test sentences.
    TestPair = 19,
    /// The choice of captions that tell places.
    PlacedCaption = 20,
}

/// Returns the generator for one purpose and one sample.
///
/// The four numbers are the four quarters of ChaCha8's 256-bit key, so different numbers give different keys.
#[must_use]
pub fn rng_for(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0_u8; 32];
    for (quarter, value) in key.chunks_exact_mut(8).zip([seed, purpose as u64, epoch, index]) {
        quarter.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// Returns a number in `0..bound`; `bound` is at least 1. It is generated as `u64`, so it is the same on every
/// platform.
#[must_use]
pub fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    rng.random_range(0..bound.max(1) as u64) as usize
}

/// Shuffles in place (Fisher and Yates, from the end).
pub fn shuffle<T>(rng: &mut ChaCha8Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let other = below(rng, last + 1);
        items.swap(last, other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_the_key_matters() {
        let random = |seed, purpose, epoch, index| -> u64 { rng_for(seed, purpose, epoch, index).random() };
        let base = random(1, Purpose::Shuffle, 2, 3);
        assert_eq!(base, random(1, Purpose::Shuffle, 2, 3));
        for other in [
            random(2, Purpose::Shuffle, 2, 3),
            random(1, Purpose::Augment, 2, 3),
            random(1, Purpose::Shuffle, 3, 3),
            random(1, Purpose::Shuffle, 2, 4),
        ] {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn a_shuffle_is_a_permutation_and_moves_things() {
        let mut items: Vec<usize> = (0..100).collect();
        shuffle(&mut rng_for(0, Purpose::Shuffle, 0, 0), &mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
