//! The attributes of captions: what a reader of them can tell, and captions in which one of them is wrong.

use phalanx_data::scenes::{NamedObject, Relation, StatedScene};
use phalanx_data::shapes::{Background, Colour, Shape};
use phalanx_data::{CaptionedImage, ImageDataset};

use crate::engine::TrainError;
use phalanx_config::{Config, DataKind};

/// An attribute of captions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CaptionAttribute {
    pub(super) name: String,
    /// The value of each sample.
    pub(super) classes: Vec<u32>,
    /// The caption of each sample with another value and no other change; `None` if the caption does not name the value once.
    pub(super) wrong: Vec<Option<String>>,
}

/// The attributes that scenes state: of the first two objects, their first relation, the object to which a third one is related, and
/// the background.
const OF_SCENES: [&str; 7] =
    ["first shape", "first colour", "second shape", "second colour", "relation", "reference", "background"];

/// Returns the attributes of the samples of a dataset: those of the dataset, what the captions of scenes state, or the class.
pub(super) fn attributes(
    config: &Config,
    images: &ImageDataset,
    samples: &[CaptionedImage],
) -> Result<Vec<CaptionAttribute>, TrainError> {
    if config.data.kind == DataKind::Scenes {
        return of_scenes(samples);
    }
    let own = images.attributes();
    if own.is_empty() && images.class_names().len() < 2 {
        let name = images.name();
        return Err(TrainError::Setup(format!(
            "the images of {name} have neither attributes nor classes, so there is nothing to look for in their captions"
        )));
    }
    let class = |sample: &CaptionedImage| sample.label;
    if own.is_empty() {
        return Ok(vec![named("class", images.class_names(), samples, &class)]);
    }
    let of = |(at, attribute): (usize, &phalanx_data::Attribute)| {
        named(&attribute.name, &attribute.values, samples, &|sample| sample.attributes[at])
    };
    Ok(own.iter().enumerate().map(of).collect())
}

/// Returns an attribute whose values have these words in captions.
fn named(
    name: &str,
    words: &[String],
    samples: &[CaptionedImage],
    class: &dyn Fn(&CaptionedImage) -> u32,
) -> CaptionAttribute {
    let wrong = |sample: &CaptionedImage| {
        let value = class(sample) as usize;
        replaced(&sample.caption, words.get(value)?, &words[(value + 1) % words.len()])
    };
    CaptionAttribute {
        name: name.to_owned(),
        classes: samples.iter().map(class).collect(),
        wrong: samples.iter().map(wrong).collect(),
    }
}

/// Replaces words that stand in a text once.
fn replaced(text: &str, from: &str, to: &str) -> Option<String> {
    let is_whole = |at: &usize| {
        let ends = |character: Option<char>| !character.is_some_and(char::is_alphanumeric);
        ends(text[..*at].chars().next_back()) && ends(text[at + from.len()..].chars().next())
    };
    let mut found = text.match_indices(from).map(|(at, _)| at).filter(is_whole);
    let (at, None) = (found.next()?, found.next()) else { return None };
    Some(format!("{}{to}{}", &text[..at], &text[at + from.len()..]))
}

fn of_scenes(samples: &[CaptionedImage]) -> Result<Vec<CaptionAttribute>, TrainError> {
    let stated: Vec<StatedScene> =
        samples.iter().map(|sample| sample.caption.parse()).collect::<Result<_, _>>()?;
    let attribute = |(at, name): (usize, &str)| CaptionAttribute {
        name: name.to_owned(),
        classes: stated.iter().map(|scene| class_of_scene(scene, at)).collect(),
        wrong: stated
            .iter()
            .zip(samples)
            .map(|(scene, sample)| wrong_scene(scene, &sample.caption, at))
            .collect(),
    };
    Ok(OF_SCENES.into_iter().enumerate().map(attribute).collect())
}

/// Returns the value of an attribute of [`OF_SCENES`].
fn class_of_scene(scene: &StatedScene, attribute: usize) -> u32 {
    let object = |at: usize| scene.objects.get(at).copied().unwrap_or(scene.objects[0]);
    match attribute {
        0 | 2 => object(attribute / 2).shape as u32,
        1 | 3 => object(attribute / 2).colour as u32,
        4 => scene.relations.first().map_or(0, |stated| stated.relation as u32),
        // 0 for scenes of two objects.
        5 => scene.relations.get(1).map_or(0, |stated| stated.object as u32 + 1),
        _ => scene.background as u32,
    }
}

/// Returns the caption of a scene with another value of an attribute of [`OF_SCENES`].
fn wrong_scene(scene: &StatedScene, caption: &str, attribute: usize) -> Option<String> {
    match attribute {
        4 => {
            let relation = scene.relations.first()?.relation;
            let other = next(Relation::ALL, relation as usize);
            Some(caption.replacen(relation.word(), other.word(), 1))
        }
        5 => {
            let object = scene.relations.get(1)?.object;
            let noun = |object: usize| scene.objects.get(object).map(|named| format!("the {}", named.noun()));
            replaced(caption, &noun(object)?, &noun(1_usize.checked_sub(object)?)?)
        }
        6 => {
            let other = next(Background::ALL, scene.background as usize);
            replaced(caption, scene.background.word(), other.word())
        }
        _ => {
            let object = *scene.objects.get(attribute / 2)?;
            let other = |after: usize| match attribute % 2 {
                0 => NamedObject { shape: next(Shape::ALL, object.shape as usize + after), ..object },
                _ => NamedObject { colour: next(Colour::ALL, object.colour as usize + after), ..object },
            };
            // The scene must not get two objects that are alike.
            let other = (0..scene.objects.len()).map(other).find(|other| !scene.objects.contains(other))?;
            Some(renamed(caption, object, other))
        }
    }
}

/// Replaces an object wherever a caption names it.
fn renamed(caption: &str, from: NamedObject, to: NamedObject) -> String {
    caption
        .replace(&from.with_article(), &to.with_article())
        .replace(&format!("the {}", from.noun()), &format!("the {}", to.noun()))
}

/// Returns the value after the one at a place, the first after the last.
fn next<T: Copy>(all: &[T], at: usize) -> T {
    all[(at + 1) % all.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_value_of_a_caption_is_replaced() {
        let caption = "a small red circle at the top left on a white background";
        let found = replaced(caption, "at the top left", "at the top");
        assert_eq!(found.as_deref(), Some("a small red circle at the top on a white background"));
        assert_eq!(replaced(caption, "a", "the"), None, "it stands there twice");
        assert_eq!(replaced(caption, "circ", "squ"), None, "no whole word");
        assert_eq!(replaced(caption, "none", "star"), None);
    }

    #[test]
    fn captions_of_scenes_stay_scenes_with_one_other_value() {
        let caption =
            "a red star left of a yellow ring and a red ring above the yellow ring on a white background";
        let scene: StatedScene = caption.parse().expect("a scene");
        let wrong = |attribute| wrong_scene(&scene, caption, attribute).expect("another value");
        let rest = " left of a yellow ring and a red ring above the yellow ring on a white background";
        assert_eq!(wrong(0), format!("a red cross{rest}"));
        assert_eq!(wrong(1), format!("a green star{rest}"));
        assert_eq!(
            wrong(3),
            "a red star left of an orange ring and a red ring above the orange ring on a white background"
        );
        assert!(wrong(4).starts_with("a red star right of a yellow ring and a red ring above"));
        assert!(wrong(5).ends_with("and a red ring above the red star on a white background"));
        assert!(wrong(6).ends_with("on a black background"));
        let two = "a red star left of a yellow ring on a white background";
        let scene: StatedScene = two.parse().expect("a scene");
        assert_eq!((wrong_scene(&scene, two, 5), class_of_scene(&scene, 5)), (None, 0));
        for attribute in 0..OF_SCENES.len() {
            let other: StatedScene = wrong(attribute).parse().expect("a scene");
            assert_ne!(class_of_scene(&other, attribute), class_of_scene(&scene, attribute));
            assert_eq!(other.objects.len(), 3, "{}", wrong(attribute));
        }
    }
}
