//! The content of a caption of a scene, and its comparison with a picture.

use std::str::FromStr;

use super::named::NamedObject;
use super::relation::Relation;
use super::spec::{Cells, SceneMatch, SceneObject, SceneSpec, StatedRelation};
use crate::error::DataError;
use crate::shapes::{Background, Colour, Position, Shape};

/// The background, the objects and the relations that a caption states. It is parsed from each wording of [`SceneSpec::caption`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StatedScene {
    /// The background colour.
    pub background: Background,
    /// The objects, in the order in which the caption names them.
    pub objects: Vec<NamedObject>,
    /// The relations of the objects.
    pub relations: Vec<StatedRelation>,
}

impl SceneSpec {
    /// Returns what [`caption`](Self::caption) states.
    #[must_use]
    pub fn stated(&self) -> StatedScene {
        StatedScene {
            background: self.background,
            objects: self.objects.iter().map(SceneObject::named).collect(),
            relations: self.relations.clone(),
        }
    }
}

impl StatedScene {
    /// Compares the scene with the `cells` of a picture. Only the relations of the objects count, not their absolute
    /// positions.
    #[must_use]
    pub fn compare(&self, cells: &Cells) -> SceneMatch {
        let seen = |wanted: &dyn Fn(Shape, Colour) -> bool| -> Vec<Position> {
            let at = |place: &Position| cells[*place as usize];
            let is = |place: &Position| at(place).is_some_and(|(shape, colour)| wanted(shape, colour));
            Position::ALL.iter().copied().filter(is).collect()
        };
        let places: Vec<Vec<Position>> = self
            .objects
            .iter()
            .map(|own| seen(&|shape, colour| (shape, colour) == (own.shape, own.colour)))
            .collect();
        let holds = |relations: &StatedRelation| {
            let (from, to) = (&places[relations.subject], &places[relations.object]);
            from.iter().any(|from| to.iter().any(|to| relations.relation.holds(*from, *to)))
        };
        let relations: Vec<bool> = self.relations.iter().map(holds).collect();
        let count = |is: &dyn Fn(&NamedObject) -> bool| self.objects.iter().filter(|own| is(own)).count();
        SceneMatch {
            objects: places.iter().filter(|places| !places.is_empty()).count(),
            colours: count(&|own| !seen(&|_, colour| colour == own.colour).is_empty()),
            shapes: count(&|own| !seen(&|shape, _| shape == own.shape).is_empty()),
            relations: relations.iter().filter(|holds| **holds).count(),
            second_relation: relations.get(1).copied(),
            superfluous: cells.iter().flatten().count().saturating_sub(self.objects.len()),
        }
    }

    /// Returns the index of a named object, which is added if it was not named before.
    fn object(&mut self, words: &str) -> Option<usize> {
        let (_article, noun) = words.trim().split_once(' ')?;
        let (colour, shape) = noun.split_once(' ')?;
        let named = NamedObject { shape: value(Shape::ALL, shape)?, colour: value(Colour::ALL, colour)? };
        Some(self.objects.iter().position(|object| *object == named).unwrap_or_else(|| {
            self.objects.push(named);
            self.objects.len() - 1
        }))
    }

    fn parse(caption: &str) -> Option<Self> {
        let (text, background) = match caption.strip_prefix("on ") {
            Some(rest) => rest.split_once(" background, ").map(|(background, text)| (text, background))?,
            None => caption.strip_suffix(" background")?.rsplit_once(" on ")?,
        };
        let background = value(Background::ALL, background.split_once(' ')?.1)?;
        let mut scene = Self { background, objects: Vec::new(), relations: Vec::new() };
        for clause in text.split(" and ") {
            let (relation, from, to) = Relation::ALL.iter().find_map(|relation| {
                let (from, to) = clause.split_once(&format!(" {relation} "))?;
                Some((*relation, from, to))
            })?;
            let (subject, object) = (scene.object(from)?, scene.object(to)?);
            scene.relations.push(StatedRelation { subject, relation, object });
        }
        Some(scene)
    }
}

impl FromStr for StatedScene {
    type Err = DataError;

    fn from_str(caption: &str) -> Result<Self, DataError> {
        Self::parse(caption).ok_or_else(|| {
            let expected = "such as \"a red star left of a blue ring on a white background\"";
            DataError::config(
                "caption",
                format!("{caption:?} states no scene; expected a caption {expected}"),
            )
        })
    }
}

/// Returns the value of a vocabulary that has this word.
fn value<T: Copy + std::fmt::Display>(all: &[T], word: &str) -> Option<T> {
    all.iter().find(|value| value.to_string() == word).copied()
}
