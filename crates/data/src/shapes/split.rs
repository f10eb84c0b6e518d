//! The combinations that are held out for testing.
//!
//! A combination is (shape, colour, background). About 15% of the combinations, chosen by a fixed hash, never appear in
//! training, although each of their parts does. A model that generates them has combined known parts in a new way.

use super::spec::{Background, Colour, Object, Shape};
use crate::dataset::Split;

/// The approximate percentage of held-out combinations.
pub(crate) const HELD_OUT_PERCENT: u64 = 15;

/// Returns the split of a combination, which depends on no seed and no length.
#[must_use]
pub fn split_of(shape: Shape, colour: Colour, background: Background) -> Split {
    let key = (shape as u64) << 16 | (colour as u64) << 8 | background as u64;
    if mix(key) % 100 < HELD_OUT_PERCENT { Split::Test } else { Split::Train }
}

/// Returns the split of an object on a background.
pub(crate) fn split_of_object(object: &Object, background: Background) -> Split {
    split_of(object.shape, object.colour, background)
}

/// Returns all combinations of one split, in a fixed order.
#[must_use]
pub fn combinations(split: Split) -> Vec<(Shape, Colour, Background)> {
    let mut all = Vec::new();
    for &shape in Shape::ALL {
        for &colour in Colour::ALL {
            for &background in Background::ALL {
                if split_of(shape, colour, background) == split {
                    all.push((shape, colour, background));
                }
            }
        }
    }
    all
}

/// Mixes the bits of a key: the finaliser of splitmix64 (Steele, Lea and Flood 2014).
pub(crate) fn mix(key: u64) -> u64 {
    let mut z = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn training_shows_every_value_and_every_pair_of_shape_and_colour() {
        let train = combinations(Split::Train);
        for &shape in Shape::ALL {
            for &colour in Colour::ALL {
                assert!(train.iter().any(|c| c.0 == shape && c.1 == colour), "{colour} {shape}");
            }
        }
        for &background in Background::ALL {
            assert!(train.iter().filter(|c| c.2 == background).count() > 20, "{background}");
        }
    }

    #[test]
    fn about_15_percent_are_held_out_with_every_shape_colour_and_background_among_them() {
        let test = combinations(Split::Test);
        let all = Shape::ALL.len() * Colour::ALL.len() * Background::ALL.len();
        assert_eq!(combinations(Split::Train).len() + test.len(), all);
        let percent = 100 * test.len() / all;
        assert!((10..=20).contains(&percent), "{percent}");
        assert!(Shape::ALL.iter().all(|&shape| test.iter().any(|c| c.0 == shape)));
        assert!(Colour::ALL.iter().all(|&colour| test.iter().any(|c| c.1 == colour)));
        // Two objects share a background, so each needs at least two combinations.
        assert!(
            Background::ALL.iter().all(|&background| test.iter().filter(|c| c.2 == background).count() >= 2)
        );
    }
}
