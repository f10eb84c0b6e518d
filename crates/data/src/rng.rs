//! Random numbers keyed by what they are for.
//!
//! Nothing here carries a generator from one sample to the next: each use builds its own from
//! (seed, purpose, epoch, index). So a number does not depend on which thread asked first, on how
//! many ranks share the work, or on where a run was resumed.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// What random numbers are for; uses with the same seed but different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Purpose {
    /// The order of an epoch.
    Shuffle = 1,
    /// Crops and flips.
    Augment = 2,
    /// The wording of a caption.
    Caption = 3,
    /// Which samples a subset keeps.
    Subset = 4,
    /// What a generated training image shows.
    TrainImage = 5,
    /// What a generated test image shows.
    TestImage = 6,
    /// The order in which chunks of samples are read.
    ChunkOrder = 7,
}

/// A generator for one purpose and one sample.
///
/// The four numbers are the four quarters of ChaCha8's 256-bit key, so no two of them collide.
#[must_use]
pub fn rng_for(seed: u64, purpose: Purpose, epoch: u64, index: u64) -> ChaCha8Rng {
    let mut key = [0_u8; 32];
    for (quarter, value) in key.chunks_exact_mut(8).zip([seed, purpose as u64, epoch, index]) {
        quarter.copy_from_slice(&value.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

/// A number in `0..bound`; `bound` is at least 1. Drawn as `u64`, so it is the same on every platform.
pub(crate) fn below(rng: &mut ChaCha8Rng, bound: usize) -> usize {
    rng.random_range(0..bound.max(1) as u64) as usize
}

/// Shuffles in place (Fisher and Yates, from the end).
pub(crate) fn shuffle<T>(rng: &mut ChaCha8Rng, items: &mut [T]) {
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
        let draw = |seed, purpose, epoch, index| -> u64 { rng_for(seed, purpose, epoch, index).random() };
        let base = draw(1, Purpose::Shuffle, 2, 3);
        assert_eq!(base, draw(1, Purpose::Shuffle, 2, 3));
        for other in [
            draw(2, Purpose::Shuffle, 2, 3),
            draw(1, Purpose::Augment, 2, 3),
            draw(1, Purpose::Shuffle, 3, 3),
            draw(1, Purpose::Shuffle, 2, 4),
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
