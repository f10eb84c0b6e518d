//! Attributes of images of shapes, as numbers that a classifier can learn.

use super::Objects;
use super::spec::{Background, Colour, Object, Position, Shape, ShapeSpec, Size};
use crate::attribute::Attribute;

/// Returns the names and values of one object's attributes.
fn of_object() -> [(&'static str, Vec<String>); 4] {
    [
        ("shape", Shape::words()),
        ("colour", Colour::words()),
        ("size", Size::words()),
        ("place", Position::words()),
    ]
}

/// Returns the attributes of images: `shape`, `colour`, `size`, `place` and `background`. Where images may have two
/// objects, these describe the one that comes first from the top left, row by row. `second_shape` to `second_place`
/// describe the other, with a value “none” where it may be missing.
#[must_use]
pub fn of(objects: Objects) -> Vec<Attribute> {
    let mut all: Vec<Attribute> =
        of_object().map(|(name, values)| Attribute::new(name, values)).into_iter().collect();
    all.push(Attribute::new("background", Background::words()));
    let second = of_object().map(|(name, values)| (format!("second_{name}"), values));
    match objects {
        Objects::One => {}
        Objects::Two => all.extend(second.map(|(name, values)| Attribute::new(name, values))),
        Objects::OneOrTwo => all.extend(second.map(|(name, values)| Attribute::optional(name, values))),
    }
    all
}

/// Returns the values of an image's attributes, in the order of [`of`].
#[must_use]
pub fn values(spec: &ShapeSpec, objects: Objects) -> Vec<u32> {
    let numbers = |object: &Object| {
        let Object { shape, colour, size, position } = *object;
        [shape as u32, colour as u32, size as u32, position as u32]
    };
    let mut seen: Vec<Object> = spec.objects().collect();
    // An image has no other order of its objects.
    seen.sort_by_key(|object| object.position);
    let mut values = Vec::new();
    if let Some(first) = seen.first() {
        values.extend(numbers(first));
    }
    values.push(spec.background as u32);
    match (objects, seen.get(1)) {
        (Objects::One, _) => {}
        (Objects::Two, second) => values.extend(second.map(numbers).unwrap_or_default()),
        (Objects::OneOrTwo, second) => {
            values.extend(second.map_or([0; 4], |second| numbers(second).map(|value| value + 1)));
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_say_what_the_caption_says() {
        let object = |shape, position| Object { shape, colour: Colour::Blue, size: Size::Large, position };
        let (star, ring) =
            (object(Shape::Star, Position::BottomRight), object(Shape::Ring, Position::TopLeft));
        let one = ShapeSpec { background: Background::Gray, first: star, second: None };
        let two = ShapeSpec { second: Some(ring), ..one };
        for (spec, objects, expected) in [
            (one, Objects::One, "star blue large at the bottom right gray"),
            (one, Objects::OneOrTwo, "star blue large at the bottom right gray none none none none"),
            (
                two,
                Objects::OneOrTwo,
                "ring blue large at the top left gray star blue large at the bottom right",
            ),
            (two, Objects::Two, "ring blue large at the top left gray star blue large at the bottom right"),
        ] {
            let known = of(objects);
            let values = values(&spec, objects);
            assert_eq!(known.len(), values.len());
            let words: Vec<&str> = known
                .iter()
                .zip(values)
                .map(|(known, value)| known.values[value as usize].as_str())
                .collect();
            assert_eq!(words.join(" "), expected);
        }
    }
}
