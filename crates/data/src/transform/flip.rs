//! Random horizontal flips.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// Returns true with a probability from 0 to 1.
#[must_use]
pub fn random_flip(probability: f32, rng: &mut ChaCha8Rng) -> bool {
    // A number in [0, 1) is always below 1 and never below 0.
    rng.random::<f32>() < probability
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};

    #[test]
    fn flips_have_the_given_frequency() {
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
