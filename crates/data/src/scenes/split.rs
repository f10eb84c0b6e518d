//! The pairs of objects that are held out for testing.
//!
//! A combination is an object, a relation and another object; “a left of b” and “b right of a” are the same. About 15%
//! of the combinations, chosen by a fixed hash, never appear in training, although each object and each relation does.

use super::relation::Relation;
use super::spec::SceneSpec;
use crate::dataset::Split;
use crate::shapes::split::{HELD_OUT_PERCENT, mix};
use crate::shapes::{Colour, Shape};

/// Returns the split of a combination, which depends on no seed and no length.
#[must_use]
pub fn split_of(subject: (Shape, Colour), relation: Relation, object: (Shape, Colour)) -> Split {
    let (first, relation, second) = match relation {
        Relation::LeftOf | Relation::Above => (subject, relation, object),
        Relation::RightOf | Relation::Below => (object, relation.converse(), subject),
    };
    let number = |(shape, colour): (Shape, Colour)| (shape as u64) << 8 | colour as u64;
    // The highest bit keeps these keys apart from those of single objects.
    let key = 1 << 63 | number(first) << 32 | number(second) << 8 | relation as u64;
    if mix(key) % 100 < HELD_OUT_PERCENT { Split::Test } else { Split::Train }
}

/// Returns true if a split allows a scene. In training, no two objects may be in a held-out relation, stated or not. In
/// testing, every stated relation must be held out.
pub(super) fn allows(split: Split, scene: &SceneSpec) -> bool {
    let objects = &scene.objects;
    let split_between = |from: usize, to: usize| {
        let (from, to) = (&objects[from], &objects[to]);
        let relation = Relation::between(from.place, to.place)?;
        Some(split_of((from.shape, from.colour), relation, (to.shape, to.colour)))
    };
    match split {
        Split::Train => (0..objects.len())
            .all(|from| (from + 1..objects.len()).all(|to| split_between(from, to) != Some(Split::Test))),
        Split::Test => scene
            .relations
            .iter()
            .all(|stated| split_between(stated.subject, stated.object) == Some(Split::Test)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_15_percent_of_the_pairs_are_held_out_in_either_direction() {
        let (mut held_out, mut all) = (0, 0);
        let nouns = || {
            let of = |shape: &Shape| Colour::ALL.iter().map(|colour| (*shape, *colour)).collect::<Vec<_>>();
            Shape::ALL.iter().flat_map(of).collect::<Vec<_>>()
        };
        for subject in nouns() {
            let mut trained = 0;
            for object in nouns() {
                for &relation in Relation::ALL {
                    let split = split_of(subject, relation, object);
                    assert_eq!(split, split_of(object, relation.converse(), subject));
                    all += 1;
                    held_out += usize::from(split == Split::Test);
                    trained += usize::from(split == Split::Train);
                }
            }
            assert!(trained > 100, "every object is trained with many others");
        }
        assert!((10..=20).contains(&(100 * held_out / all)), "{held_out} of {all}");
    }
}
