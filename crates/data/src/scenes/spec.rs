//! What a scene shows, as values, the words for it, and whether a picture shows it.

use super::relation::Relation;
use crate::captions::article;
use crate::shapes::{Background, Colour, Position, Shape};

/// One object of a scene.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SceneObject {
    /// Its shape.
    pub shape: Shape,
    /// Its colour.
    pub colour: Colour,
    /// The cell of a grid of three by three in which it lies.
    pub place: Position,
    /// Its centre, x to the right and y down, as parts of the picture's side.
    pub centre: (f32, f32),
    /// The radius of the circle around it, as a part of the picture's side.
    pub radius: f32,
}

impl SceneObject {
    /// “red circle”.
    #[must_use]
    pub fn noun(&self) -> String {
        format!("{} {}", self.colour, self.shape)
    }

    /// “a red circle”, “an orange ring”.
    fn with_article(&self) -> String {
        let noun = self.noun();
        format!("{} {noun}", article(&noun))
    }
}

/// What a caption says of two objects, by their places in [`SceneSpec::objects`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stated {
    /// Which object it is said of.
    pub subject: usize,
    /// How it lies to the other.
    pub relation: Relation,
    /// Which object it is related to.
    pub object: usize,
}

/// What is seen in the cells of a picture, in the order of [`Position::ALL`].
pub type Cells = [Option<(Shape, Colour)>; 9];

/// How much of a scene a picture shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    /// Objects of the scene whose shape and colour are there together.
    pub objects: usize,
    /// Objects of the scene whose colour is there, on whatever shape.
    pub colours: usize,
    /// Objects of the scene whose shape is there, in whatever colour.
    pub shapes: usize,
    /// Relations of the caption that hold between objects that are there.
    pub relations: usize,
    /// Objects that are there beyond as many as the scene has.
    pub superfluous: usize,
}

/// All that a scene shows: a background, two or three objects that differ in colour or shape, and what is said of them.
#[derive(Debug, Clone, PartialEq)]
pub struct SceneSpec {
    /// The colour behind.
    pub background: Background,
    /// The objects, in the order of the caption.
    pub objects: Vec<SceneObject>,
    /// The relations that the caption tells; each object after the first two is the subject of one.
    pub stated: Vec<Stated>,
}

impl SceneSpec {
    /// How many wordings [`caption`](Self::caption) has.
    pub const NUM_WORDINGS: usize = 3;

    /// The label: the index of the first object's shape.
    #[must_use]
    pub fn label(&self) -> u32 {
        self.objects.first().map_or(0, |object| object.shape as u32)
    }

    /// A sentence with all objects, the stated relations and the background. `wording` is taken modulo
    /// [`NUM_WORDINGS`](Self::NUM_WORDINGS); 0 is the plain one, and 1 tells the first relation from its other end.
    #[must_use]
    pub fn caption(&self, wording: usize) -> String {
        let wording = wording % Self::NUM_WORDINGS;
        let mut text = String::new();
        for (number, Stated { subject, relation, object }) in self.stated.iter().copied().enumerate() {
            let turned = number == 0 && wording == 1;
            let (from, relation, to) =
                if turned { (object, relation.converse(), subject) } else { (subject, relation, object) };
            let (from, to) = (&self.objects[from], &self.objects[to]);
            if number > 0 {
                text.push_str(" and ");
            }
            text.push_str(&from.with_article());
            text.push(' ');
            text.push_str(relation.word());
            text.push(' ');
            // Whoever has been named before is known.
            text.push_str(&if number == 0 { to.with_article() } else { format!("the {}", to.noun()) });
        }
        let background = self.background;
        match wording {
            2 => format!("on a {background} background, {text}"),
            _ => format!("{text} on a {background} background"),
        }
    }

    /// What lies in each cell.
    #[must_use]
    pub fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        for object in &self.objects {
            cells[object.place as usize] = Some((object.shape, object.colour));
        }
        cells
    }

    /// How much of this scene a picture shows, of which `cells` were seen. Where objects lie does not matter, only how they
    /// lie to each other.
    #[must_use]
    pub fn shown_in(&self, cells: &Cells) -> Shown {
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
        let holds = |stated: &&Stated| {
            let (from, to) = (&places[stated.subject], &places[stated.object]);
            from.iter().any(|from| to.iter().any(|to| stated.relation.holds(*from, *to)))
        };
        let count = |is: &dyn Fn(&SceneObject) -> bool| self.objects.iter().filter(|own| is(own)).count();
        Shown {
            objects: places.iter().filter(|places| !places.is_empty()).count(),
            colours: count(&|own| !seen(&|_, colour| colour == own.colour).is_empty()),
            shapes: count(&|own| !seen(&|shape, _| shape == own.shape).is_empty()),
            relations: self.stated.iter().filter(holds).count(),
            superfluous: cells.iter().flatten().count().saturating_sub(self.objects.len()),
        }
    }
}

#[cfg(test)]
mod tests {
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
            stated: vec![
                Stated { subject: 0, relation: Relation::LeftOf, object: 1 },
                Stated { subject: 2, relation: Relation::Above, object: 1 },
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
    fn a_picture_is_judged_by_what_its_cells_show() {
        let scene = scene();
        let all = Shown { objects: 3, colours: 3, shapes: 3, relations: 2, superfluous: 0 };
        assert_eq!(scene.shown_in(&scene.cells()), all);
        // Elsewhere, with another object beside them.
        let mut cells = Cells::default();
        cells[Position::BottomLeft as usize] = Some((Shape::Star, Colour::Red));
        cells[Position::Bottom as usize] = Some((Shape::Ring, Colour::Blue));
        cells[Position::Top as usize] = Some((Shape::Square, Colour::Orange));
        cells[Position::TopLeft as usize] = Some((Shape::Cross, Colour::Pink));
        assert_eq!(scene.shown_in(&cells), Shown { superfluous: 1, ..all });
        // The colours of star and ring exchanged.
        cells[Position::BottomLeft as usize] = Some((Shape::Star, Colour::Blue));
        cells[Position::Bottom as usize] = Some((Shape::Ring, Colour::Red));
        let got = scene.shown_in(&cells);
        assert_eq!(got, Shown { objects: 1, relations: 0, superfluous: 1, ..all });
    }
}
