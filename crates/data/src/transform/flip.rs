//! Whether an image is mirrored left to right, by chance.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Whether to mirror, with a probability from 0 to 1.
#[must_use]
pub fn random_flip(probability: f32, rng: &mut ChaCha8Rng) -> bool {
    // A draw in [0, 1) is below 1 always and below 0 never.
    rng.random::<f32>() < probability
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};

    #[test]
    fn flips_as_often_as_asked() {
        let count = |probability| {
            (0..1000)
                .filter(|&index| random_flip(probability, &mut rng_for(0, Purpose::Augment, 0, index)))
                .count()
        };
        assert_eq!(count(0.0), 0);
        assert_eq!(count(1.0), 1000);
        assert!((440..560).contains(&count(0.5)));
    }
}
