//! The values of properties that generated images show in place of those that they should.

use serde::Serialize;

use super::evaluator::LoadedEvaluator;
use super::judged_answer::JudgedSum;
use super::pictures::ImageFeatures;

/// Two values of a property that an evaluator found confused in generated images, or in real ones by its own mistake.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConfusedValues {
    /// The property.
    pub property: String,
    /// The value that images should show.
    pub wanted: String,
    /// The value that was found.
    pub found: String,
    /// The number of generated images that should show the value.
    pub images: f64,
    /// The number of them in which the other was found.
    pub drawn: f64,
    /// The number of real images of the value in which the other was found.
    pub real: f64,
}

/// Returns the pairs of values that one evaluator found confused, those of the most generated images first.
pub(super) fn confused(
    evaluator: &LoadedEvaluator,
    real: &ImageFeatures,
    made: &ImageFeatures,
) -> Vec<ConfusedValues> {
    let mut all: Vec<ConfusedValues> = Vec::new();
    for (made, real) in made.judged.iter().zip(&real.judged) {
        all.extend(of_property(made, real, &|value| evaluator.value(&made.name, value)));
    }
    // The sort is stable.
    all.sort_by(|a, b| b.drawn.total_cmp(&a.drawn));
    all
}

fn of_property(made: &JudgedSum, real: &JudgedSum, name: &dyn Fn(usize) -> String) -> Vec<ConfusedValues> {
    let (Some(made_of), Some(real_of)) = (&made.confusion, &real.confusion) else { return Vec::new() };
    let property = if made.name == "labels" { "class" } else { &made.name };
    let pairs =
        (0..made_of.classes()).flat_map(|wanted| (0..made_of.classes()).map(move |found| (wanted, found)));
    let wrong = pairs.filter(|(wanted, found)| {
        let count = made_of.count(*wanted, *found) + real_of.count(*wanted, *found);
        wanted != found && count > 0.0
    });
    wrong
        .map(|(wanted, found)| ConfusedValues {
            property: property.to_owned(),
            wanted: name(wanted),
            found: name(found),
            images: made_of.samples(wanted),
            drawn: made_of.count(wanted, found),
            real: real_of.count(wanted, found),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use phalanx_run::ConfusionMatrix;

    use super::*;

    #[test]
    fn pairs_of_wrong_values_have_their_names_and_counts() {
        let sum = |pairs: &[[usize; 2]]| {
            let mut confusion = ConfusionMatrix::new(3);
            pairs.iter().for_each(|[wanted, found]| confusion.add(*wanted, *found, 1.0));
            JudgedSum { name: "shape".to_owned(), right: 0.0, images: 0, confusion: Some(confusion) }
        };
        let made = sum(&[[0, 0], [0, 1], [0, 1], [2, 2]]);
        let real = sum(&[[0, 0], [0, 1], [2, 0], [2, 2]]);
        let name = |value: usize| ["star", "ring", "cross"][value].to_owned();
        let found = of_property(&made, &real, &name);
        let counts: Vec<_> = found
            .iter()
            .map(|pair| (pair.wanted.as_str(), pair.found.as_str(), pair.images, pair.drawn, pair.real))
            .collect();
        assert_eq!(counts, [("star", "ring", 3.0, 2.0, 1.0), ("cross", "star", 1.0, 0.0, 1.0)]);
        let of_scenes = JudgedSum { confusion: None, ..made };
        assert!(of_property(&of_scenes, &real, &name).is_empty());
    }
}
