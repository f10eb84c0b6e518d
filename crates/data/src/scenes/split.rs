//! Which pairs of objects are kept for testing.
//!
//! A combination is an object, a relation and another object, where “a left of b” and “b right of a” are one. About 15% of
//! them, chosen by a fixed hash, are never shown in training, although each object and each relation is.

use super::relation::Relation;
use super::spec::SceneSpec;
use crate::dataset::Split;
use crate::shapes::split::{HELD_OUT_PERCENT, mix};
use crate::shapes::{Colour, Shape};

/// The split that shows a combination. It depends on nothing else, no seed and no length.
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

/// Whether a split may show a scene: in training no two objects lie to each other in a way that is held out, said or not; in
/// testing all that the caption says is held out.
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
        Split::Test => {
            scene.stated.iter().all(|said| split_between(said.subject, said.object) == Some(Split::Test))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_15_percent_of_the_pairs_are_held_out_whichever_way_they_are_told() {
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
            assert!(trained > 100, "every object is seen beside many others");
        }
        assert!((10..=20).contains(&(100 * held_out / all)), "{held_out} of {all}");
    }
}
