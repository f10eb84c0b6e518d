//! The content of a scene, and its captions.

use super::named::NamedObject;
use super::relation::Relation;
use crate::shapes::{Background, Colour, Position, Shape};

/// One object of a scene.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SceneObject {
    /// The shape.
    pub shape: Shape,
    /// The colour.
    pub colour: Colour,
    /// The cell of a 3×3 grid that holds the object.
    pub place: Position,
    /// The centre, x to the right and y down, as fractions of the image side.
    pub centre: (f32, f32),
    /// The radius of the circumscribed circle, as a fraction of the image side.
    pub radius: f32,
}

impl SceneObject {
    /// Returns the object as captions name it.
    #[must_use]
    pub fn named(&self) -> NamedObject {
        NamedObject { shape: self.shape, colour: self.colour }
    }

    /// “a red circle on the left”.
    fn with_place(&self) -> String {
        format!("{} {}", self.named().with_article(), self.place)
    }
}

/// A relation of two objects that a caption states. The objects are indices into [`SceneSpec::objects`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatedRelation {
    /// The subject of the statement.
    pub subject: usize,
    /// The relation of the subject to the object.
    pub relation: Relation,
    /// The object of the statement.
    pub object: usize,
}

/// The contents of the cells of a picture, in the order of [`Position::ALL`].
pub type Cells = [Option<(Shape, Colour)>; 9];

/// The agreement of a picture with a scene.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SceneMatch {
    /// Objects of the scene that the picture shows, by shape and colour together.
    pub objects: usize,
    /// Objects of the scene whose colour the picture shows, on any shape.
    pub colours: usize,
    /// Objects of the scene whose shape the picture shows, in any colour.
    pub shapes: usize,
    /// Stated relations that hold between objects of the picture.
    pub relations: usize,
    /// True if the second of the stated relations holds, which refers to an object that the caption named before; `None` if one is
    /// stated.
    pub second_relation: Option<bool>,
    /// The number of objects in the picture beyond the scene's.
    pub superfluous: usize,
}

/// The content of a scene: a background, two or three objects that differ in shape or colour, and the stated relations.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneSpec {
    /// The background colour.
    pub background: Background,
    /// The objects, in the order of the caption.
    pub objects: Vec<SceneObject>,
    /// The stated relations; each object after the first two is the subject of one.
    pub relations: Vec<StatedRelation>,
}

impl SceneSpec {
    /// The number of wordings of [`caption`](Self::caption).
    pub const NUM_WORDINGS: usize = 3;

    /// Returns the label: the index of the first object's shape.
    #[must_use]
    pub fn label(&self) -> u32 {
        self.objects.first().map_or(0, |object| object.shape as u32)
    }

    /// Returns a sentence with all objects, the stated relations and the background. `wording` is taken modulo
    /// [`NUM_WORDINGS`](Self::NUM_WORDINGS); 0 is the plain one, and 1 states the first relation in reverse.
    #[must_use]
    pub fn caption(&self, wording: usize) -> String {
        let wording = wording % Self::NUM_WORDINGS;
        let mut text = String::new();
        for (number, StatedRelation { subject, relation, object }) in
            self.relations.iter().copied().enumerate()
        {
            let turned = number == 0 && wording == 1;
            let (from, relation, to) =
                if turned { (object, relation.converse(), subject) } else { (subject, relation, object) };
            let (from, to) = (self.objects[from].named(), self.objects[to].named());
            if number > 0 {
                text.push_str(" and ");
            }
            text.push_str(&from.with_article());
            text.push(' ');
            text.push_str(relation.word());
            text.push(' ');
            // An object that was named before has the definite article.
            text.push_str(&if number == 0 { to.with_article() } else { format!("the {}", to.noun()) });
        }
        let background = self.background;
        match wording {
            2 => format!("on a {background} background, {text}"),
            _ => format!("{text} on a {background} background"),
        }
    }

    /// Returns a sentence with all objects, the place of each, and the background, in place of relations.
    #[must_use]
    pub fn placed_caption(&self) -> String {
        self.listed(self.objects.iter().map(SceneObject::with_place))
    }

    /// Returns a sentence with the places of all objects but the last, its relation to one of these, and the background. The place of a
    /// last object of which no relation is stated is told, too.
    #[must_use]
    pub fn partly_placed_caption(&self) -> String {
        let last = self.objects.len().saturating_sub(1);
        let related = self.relations.iter().find_map(|stated| {
            let (relation, to) = match (stated.subject, stated.object) {
                (subject, to) if subject == last => (stated.relation, to),
                (to, object) if object == last => (stated.relation.converse(), to),
                _ => return None,
            };
            Some(format!("{relation} the {}", self.objects[to].named().noun()))
        });
        let told = |(number, object): (usize, &SceneObject)| match &related {
            Some(related) if number == last => format!("{} {related}", object.named().with_article()),
            _ => object.with_place(),
        };
        self.listed(self.objects.iter().enumerate().map(told))
    }

    /// “a red circle on the left and a blue ring on the right on a white background”.
    fn listed(&self, objects: impl Iterator<Item = String>) -> String {
        format!("{} on a {} background", objects.collect::<Vec<_>>().join(" and "), self.background)
    }

    /// Returns the contents of the cells.
    #[must_use]
    pub fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        for object in &self.objects {
            cells[object.place as usize] = Some((object.shape, object.colour));
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::super::StatedScene;
    use super::*;

    fn object(shape: Shape, colour: Colour, place: Position) -> SceneObject {
        SceneObject { shape, colour, place, centre: (0.5, 0.5), radius: 0.1 }
    }

    fn scene() -> SceneSpec {
        SceneSpec {
            background: Background::White,
            objects: vec![
                object(Shape::Star, Colour::Red, Position::Left),
                object(Shape::Ring, Colour::Blue, Position::Right),
                object(Shape::Square, Colour::Orange, Position::TopRight),
            ],
            relations: vec![
                StatedRelation { subject: 0, relation: Relation::LeftOf, object: 1 },
                StatedRelation { subject: 2, relation: Relation::Above, object: 1 },
            ],
        }
    }

    #[test]
    fn captions_read_as_sentences() {
        let scene = scene();
        assert_eq!(
            scene.caption(0),
            "a red star left of a blue ring and an orange square above the blue ring on a white background"
        );
        assert_eq!(
            scene.caption(1),
            "a blue ring right of a red star and an orange square above the blue ring on a white background"
        );
        assert_eq!(
            scene.caption(2),
            "on a white background, a red star left of a blue ring and an orange square above the blue ring"
        );
    }

    #[test]
    fn captions_may_tell_places() {
        assert_eq!(
            scene().placed_caption(),
            "a red star on the left and a blue ring on the right and an orange square at the top right on a white background"
        );
        assert_eq!(
            scene().partly_placed_caption(),
            "a red star on the left and a blue ring on the right and an orange square above the blue ring on a white background"
        );
        let two = SceneSpec {
            objects: scene().objects[..2].to_vec(),
            relations: scene().relations[..1].to_vec(),
            ..scene()
        };
        assert_eq!(
            two.partly_placed_caption(),
            "a red star on the left and a blue ring right of the red star on a white background"
        );
    }

    #[test]
    fn every_wording_states_the_scene() {
        let scene = scene();
        for wording in [0, 2] {
            assert_eq!(scene.caption(wording).parse::<StatedScene>().expect("a scene"), scene.stated());
        }
        // The first relation is stated from the other side.
        let turned: StatedScene = scene.caption(1).parse().expect("a scene");
        assert_eq!((turned.background, turned.objects.len()), (Background::White, 3));
        assert_eq!(turned.compare(&scene.cells()), scene.stated().compare(&scene.cells()));
        for caption in
            ["", "a red star", "a red star left of a blue ring", "a red star on a white background"]
        {
            let error = caption.parse::<StatedScene>().expect_err("no scene").to_string();
            assert!(error.contains("states no scene"), "{error}");
        }
    }

    #[test]
    fn a_picture_is_compared_by_its_cells() {
        let scene = scene();
        let all = SceneMatch {
            objects: 3,
            colours: 3,
            shapes: 3,
            relations: 2,
            second_relation: Some(true),
            superfluous: 0,
        };
        assert_eq!(scene.stated().compare(&scene.cells()), all);
        // At other positions, with an additional object.
        let mut cells = Cells::default();
        cells[Position::BottomLeft as usize] = Some((Shape::Star, Colour::Red));
        cells[Position::Bottom as usize] = Some((Shape::Ring, Colour::Blue));
        cells[Position::Top as usize] = Some((Shape::Square, Colour::Orange));
        cells[Position::TopLeft as usize] = Some((Shape::Cross, Colour::Pink));
        assert_eq!(scene.stated().compare(&cells), SceneMatch { superfluous: 1, ..all });
        // The colours of star and ring exchanged.
        cells[Position::BottomLeft as usize] = Some((Shape::Star, Colour::Blue));
        cells[Position::Bottom as usize] = Some((Shape::Ring, Colour::Red));
        let got = scene.stated().compare(&cells);
        let none = SceneMatch { relations: 0, second_relation: Some(false), ..all };
        assert_eq!(got, SceneMatch { objects: 1, superfluous: 1, ..none });
        let mut two = scene.stated();
        two.relations.truncate(1);
        assert_eq!(two.compare(&scene.cells()).second_relation, None);
    }
}
