//! The accuracy of what images of scenes show: objects and their relations, at any place, since captions leave places open.

use phalanx_data::scenes::{StatedScene, attributes, cells};

use super::judged_answer::JudgedAnswer;
use crate::engine::error::TrainError;

/// The answers of an evaluator of scenes: of each attribute the value of every image.
pub(super) struct SceneAnswers<'a> {
    /// The values by attribute, in the order of `phalanx_data::scenes::attributes`.
    found: Vec<&'a [u32]>,
}

impl<'a> SceneAnswers<'a> {
    /// Returns the answers, if they are those of scenes.
    pub(super) fn of(answers: &'a [(String, Vec<u32>)]) -> Option<Self> {
        let names = attributes().into_iter().map(|attribute| attribute.name);
        answers
            .iter()
            .map(|(name, _)| name)
            .eq(names.collect::<Vec<_>>().iter())
            .then(|| Self { found: answers.iter().map(|(_, found)| found.as_slice()).collect() })
    }

    /// Returns for each image the fractions of its caption's objects, shapes, colours and relations that it shows, and whether the second
    /// relation holds, if the caption states one, whether it has the background, and all of it and nothing else.
    pub(super) fn judged(&self, captions: &[String]) -> Result<Vec<JudgedAnswer>, TrainError> {
        let names = ["shape", "colour", "object", "relation", "second_relation", "background", "scene"];
        let mut answers =
            names.map(|name| JudgedAnswer { name: name.to_owned(), right: Vec::new(), confusion: None });
        for (image, caption) in captions.iter().enumerate() {
            let stated: StatedScene = caption.parse()?;
            let values: Vec<u32> = self.found.iter().map(|found| found[image]).collect();
            let seen = stated.compare(&cells(&values)?);
            let (objects, relations) = (stated.objects.len(), stated.relations.len());
            let background = values[0] == stated.background as u32;
            let whole = seen.objects == objects && seen.relations == relations && seen.superfluous == 0;
            let part = |count: usize, of: usize| Some(count as f64 / of.max(1) as f64);
            let whether = |is: bool| f64::from(u8::from(is));
            let of_image = [
                part(seen.shapes, objects),
                part(seen.colours, objects),
                part(seen.objects, objects),
                part(seen.relations, relations),
                seen.second_relation.map(whether),
                Some(whether(background)),
                Some(whether(background && whole)),
            ];
            answers.iter_mut().zip(of_image).for_each(|(answer, part)| answer.right.push(part));
        }
        Ok(answers.into())
    }
}

#[cfg(test)]
mod tests {
    use phalanx_data::scenes::{attribute_values, heldout_scenes};

    use super::*;

    #[test]
    fn scenes_are_judged_by_objects_and_relations_at_any_place() {
        let (captions, specs): (Vec<String>, Vec<_>) = heldout_scenes(20, &(2..=3)).into_iter().unzip();
        let values: Vec<Vec<u32>> = specs.iter().map(attribute_values).collect();
        let answers: Vec<(String, Vec<u32>)> = attributes()
            .into_iter()
            .enumerate()
            .map(|(at, attribute)| (attribute.name, values.iter().map(|values| values[at]).collect()))
            .collect();
        let sums = |captions: &[String]| -> Vec<f64> {
            let judged = SceneAnswers::of(&answers).expect("scenes").judged(captions).expect("of scenes");
            judged.iter().map(|answer| answer.right.iter().flatten().sum()).collect()
        };
        // Half of the scenes state a second relation.
        assert_eq!(sums(&captions), [20.0, 20.0, 20.0, 20.0, 10.0, 20.0, 20.0]);
        // The pictures of other captions.
        let turned: Vec<String> = captions.iter().cycle().skip(1).take(20).cloned().collect();
        assert!(sums(&turned).iter().all(|sum| *sum < 12.0), "{:?}", sums(&turned));
        assert!(SceneAnswers::of(&answers[1..]).is_none());
        let strange = vec!["a photo".to_owned(); 20];
        assert!(SceneAnswers::of(&answers).expect("scenes").judged(&strange).is_err());
    }
}
